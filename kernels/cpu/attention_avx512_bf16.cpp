// Attention with BF16 dot products, for half-precision and quantised KV; f32 KV takes the exact AVX-512 path.
//
// A tile is 64 keys. Its keys are packed as [pair of dimensions][key] and its values as [pair of keys][dimension],
// bf16 pairs in 32 bits, whatever the number of queries: so decode and prefill run the same sums. A score is one chain
// of dots over ascending pairs of dimensions, a weighted sum of values one over ascending pairs of keys. Scaled
// queries, keys, values and weights are rounded to bf16; scores, softmax and sums are f32, and the weights are summed
// up as rounded, so that an output stays a weighted mean.
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/status.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/vec_avx512.h"

// What attention_avx512.cpp instantiates too is compiled for the same target here.
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#include "kernels/cpu/attention_body.h"

#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace tandem::cpu {
namespace {

using avx512::Vec;
using Pair = std::uint32_t;  // two bf16, the first in the low half

constexpr int kKeys = 64;
constexpr int kVectors = kKeys / 16;
static_assert(kChunkKeys % kKeys == 0);

template <class Row>
using Rows = TileRows<Row, kKeys>;

inline __m512bh as_bf16(__m512i x) { return reinterpret_cast<__m512bh>(x); }
inline __m512 dot(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, as_bf16(a), as_bf16(b)); }
inline __m512i to_bf16(__m512 low, __m512 high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); }
inline __m512i load(const void* p) { return _mm512_load_si512(p); }
inline __m512i spread(Pair x) { return _mm512_set1_epi32(static_cast<int>(x)); }

// 32 elements of a row from `d` on, as bf16; those not in `present` are zero and not read.
inline __m512i load_32(const BFloat* row, int d, __mmask32 present) {
  return _mm512_maskz_loadu_epi16(present, row + d);
}
inline __m512i load_32(const Half* row, int d, __mmask32 present) {
  const __m256i low = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(present), row + d);
  const __m256i high = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(present >> 16), row + d + 16);
  return to_bf16(_mm512_cvtph_ps(low), _mm512_cvtph_ps(high));
}
inline __m512i load_32(Q8Row row, int d, __mmask32 present) {
  const __m256i quants = _mm256_maskz_loadu_epi8(present, row.quants + d);
  const __m512 scale = _mm512_set1_ps(Octet::to_float(row.scales[d / kQ8Block]));
  const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(quants)));
  const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(quants, 1)));
  return to_bf16(_mm512_mul_ps(low, scale), _mm512_mul_ps(high, scale));
}
template <class T>
void prefetch_32(const T* row, int d) {
  _mm_prefetch(reinterpret_cast<const char*>(row + d), _MM_HINT_T0);
}
inline void prefetch_32(Q8Row row, int d) {
  prefetch_32(row.quants, d);
  if (d == 0) prefetch_32(row.scales, 0);
}
inline __mmask32 first_32(int n) { return n >= 32 ? 0xFFFFFFFFU : (1U << n) - 1U; }

// out[i * kKeys + k] = pair i of rows[k], for i < n.
inline void transpose_16(const __m512i* rows, int n, Pair* out) {
  __m512i quad[16];  // quad[4 g + j], 128-bit lane l: pair 4 l + j of rows 4 g to 4 g + 3
#pragma GCC unroll 4
  for (int g = 0; g < 16; g += 4) {
    const __m512i a = _mm512_unpacklo_epi32(rows[g], rows[g + 1]);
    const __m512i b = _mm512_unpackhi_epi32(rows[g], rows[g + 1]);
    const __m512i c = _mm512_unpacklo_epi32(rows[g + 2], rows[g + 3]);
    const __m512i d = _mm512_unpackhi_epi32(rows[g + 2], rows[g + 3]);
    quad[g] = _mm512_unpacklo_epi64(a, c);
    quad[g + 1] = _mm512_unpackhi_epi64(a, c);
    quad[g + 2] = _mm512_unpacklo_epi64(b, d);
    quad[g + 3] = _mm512_unpackhi_epi64(b, d);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i even_a = _mm512_shuffle_i32x4(quad[j], quad[4 + j], 0x88);
    const __m512i odd_a = _mm512_shuffle_i32x4(quad[j], quad[4 + j], 0xDD);
    const __m512i even_b = _mm512_shuffle_i32x4(quad[8 + j], quad[12 + j], 0x88);
    const __m512i odd_b = _mm512_shuffle_i32x4(quad[8 + j], quad[12 + j], 0xDD);
    _mm512_store_si512(out + j * kKeys, _mm512_shuffle_i32x4(even_a, even_b, 0x88));
    if (n > 4) _mm512_store_si512(out + (4 + j) * kKeys, _mm512_shuffle_i32x4(odd_a, odd_b, 0x88));
    if (n > 8) _mm512_store_si512(out + (8 + j) * kKeys, _mm512_shuffle_i32x4(even_a, even_b, 0xDD));
    if (n > 12) _mm512_store_si512(out + (12 + j) * kKeys, _mm512_shuffle_i32x4(odd_a, odd_b, 0xDD));
  }
}

// Names rows past the end of a tile, so that nobody need ask: they are read and masked, or only fetched.
template <class Row>
void repeat_rows(const Rows<Row>& before, Rows<Row>& tile) {
  const Rows<Row>& from = tile.n > 0 ? tile : before;
  const Row key = from.keys[from.n - 1];
  const Row value = from.values[from.n - 1];
  std::fill(tile.keys + tile.n, tile.keys + kKeys, key);
  std::fill(tile.values + tile.n, tile.values + kKeys, value);
}

// Keys [dim / 2][kKeys]; past the tile's n some repeats, whose scores are masked, then what was there. Meanwhile
// fetches the tile `ahead`: blocks lie anywhere, so the processor does not foresee them.
template <class Row>
void pack_keys(const HeadShape& head, const Rows<Row>& tile, const Rows<Row>& ahead, Pair* out) {
  for (int d = 0; d < head.dim; d += 32, out += 16 * kKeys) {
    const __mmask32 present = first_32(head.dim - d);
    const int pairs = (head.dim - d) / 2;
    for (int first = 0; first < tile.n; first += 16) {
      __m512i rows[16];
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) {
        rows[k] = load_32(tile.keys[first + k], d, present);
        prefetch_32(ahead.keys[first + k], d);
      }
      transpose_16(rows, pairs, out + first);
    }
  }
}

// Values [ceil(n / 2)][padded]; a missing last one is zero.
template <class Row>
void pack_values(const HeadShape& head, const Rows<Row>& tile, const Rows<Row>& ahead, Pair* out) {
  alignas(64) static constexpr std::uint16_t kLow[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = load(kLow);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int d = 0; d < head.dim; d += 32, out += 32) {
    const __mmask32 present = first_32(head.dim - d);
    const bool both = d + 16 < head.padded;
    for (int k = 0; k < tile.n; k += 2) {
      const __m512i a = load_32(tile.values[k], d, present);
      const __m512i b = load_32(tile.values[k + 1], d, k + 1 < tile.n ? present : 0);
      prefetch_32(ahead.values[k], d);
      prefetch_32(ahead.values[k + 1], d);
      Pair* to = out + k / 2 * head.padded;
      _mm512_store_si512(to, _mm512_permutex2var_epi16(a, low, b));
      if (both) _mm512_store_si512(to + 16, _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

// Scores of R queries [R][stride] and the first 16 K keys: s[r * kKeys + key].
template <int R, int K>
void score(int pairs, const Pair* q, std::int64_t stride, const Pair* keys, float* s) {
  __m512 sums[R][K];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int k = 0; k < K; ++k) sums[r][k] = _mm512_setzero_ps();
  }
  for (int i = 0; i < pairs; ++i) {
    __m512i x[K];
#pragma GCC unroll 4
    for (int k = 0; k < K; ++k) x[k] = load(keys + i * kKeys + 16 * k);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m512i y = spread(q[r * stride + i]);
#pragma GCC unroll 4
      for (int k = 0; k < K; ++k) sums[r][k] = dot(sums[r][k], x[k], y);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int k = 0; k < K; ++k) _mm512_store_ps(s + r * kKeys + 16 * k, sums[r][k]);
  }
}

// e^x for x <= 0 with a relative error below 4e-6, much finer than a weight's rounding; exactly 1 at 0; NaN stays NaN.
// 2^t = 2^floor(t) * p(t - floor(t)), a minimax polynomial with p(0) = 1.
inline __m512 exp_weight(__m512 x) {
  constexpr int kMinusFloor = 0x09;
  const __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504F));
  const __m512 f = _mm512_reduce_ps(t, kMinusFloor);
  __m512 p = _mm512_set1_ps(0x1.b7f738p-7F);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.abf866p-5F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ee2452p-3F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62d6c6p-1F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, t);
}

// The largest lane in all lanes.
inline __m512 spread_max(__m512 a) {
  a = _mm512_max_ps(a, _mm512_shuffle_f32x4(a, a, 0x4E));
  a = _mm512_max_ps(a, _mm512_shuffle_f32x4(a, a, 0xB1));
  a = _mm512_max_ps(a, _mm512_permute_ps(a, 0x4E));
  return _mm512_max_ps(a, _mm512_permute_ps(a, 0xB1));
}

// Turns the first `valid` of 16 K scores into weights (0 for the others) relative to the new maximum, as kKeys bf16 in
// the place of the first half, and returns what the old sums must be multiplied by: exactly 1 when the maximum stays.
template <int K>
__m512 soften(float* s, int valid, float* sum, float* maximum) {
  if (valid == 0) return _mm512_set1_ps(1.0F);
  const __m512 lowest = _mm512_set1_ps(std::numeric_limits<float>::lowest());
  const std::uint64_t present = valid >= kKeys ? ~std::uint64_t{0} : (std::uint64_t{1} << valid) - 1;
  const __m512 old = _mm512_load_ps(maximum);
  __m512 x[K];
  __m512 largest = old;
#pragma GCC unroll 4
  for (int k = 0; k < K; ++k) {
    x[k] = _mm512_mask_loadu_ps(lowest, static_cast<__mmask16>(present >> (16 * k)), s + 16 * k);
    largest = _mm512_max_ps(x[k], largest);
  }
  largest = spread_max(largest);
#pragma GCC unroll 4
  for (int k = 0; k < K; ++k) {
    x[k] = _mm512_maskz_mov_ps(static_cast<__mmask16>(present >> (16 * k)), exp_weight(_mm512_sub_ps(x[k], largest)));
  }
  const __m512 factor = exp_weight(_mm512_sub_ps(old, largest));
  __m512 total = _mm512_mul_ps(_mm512_load_ps(sum), factor);
  const __m512i ones = spread(0x3F803F80);
#pragma GCC unroll 2
  for (int k = 0; k < K; k += 2) {
    const __m512i weights = to_bf16(x[k], x[k + 1]);
    total = dot(total, weights, ones);
    _mm512_store_si512(s + 8 * k, weights);
  }
  _mm512_store_ps(sum, total);
  _mm512_store_ps(maximum, largest);
  return factor;
}

// out[r] = out[r] * factor[r] + the weighted values of key pairs [first, end), for C vectors of dimensions from `dim`
// on. Weights [R][kKeys floats], their first half used; `keep` masks each pair.
template <int R, int C>
void add_pairs(const Pair* weights, int first, int end, Pair keep, const Pair* values, std::int64_t padded,
               std::int64_t state, float* out, const __m512* factor) {
  __m512 acc[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = _mm512_mul_ps(_mm512_load_ps(out + r * state + 16 * c), factor[r]);
  }
  for (int i = first; i < end; ++i) {
    __m512i x[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) x[c] = load(values + i * padded + 16 * c);
    if constexpr (R == 1) {
      for (int c = 0; c < C; ++c) x[c] = _mm512_and_si512(x[c], spread(keep));
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m512i w = spread(weights[r * kKeys + i]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = dot(acc[r][c], x[c], w);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) _mm512_store_ps(out + r * state + 16 * c, acc[r][c]);
  }
}

template <int R>
void add_pairs(const Pair* weights, int first, int end, Pair keep, const Pair* values, std::int64_t padded,
               std::int64_t state, float* out, const __m512* factor) {
  std::int64_t d = 0;
  for (; d + 64 <= padded; d += 64) {
    add_pairs<R, 4>(weights, first, end, keep, values + d, padded, state, out + d, factor);
  }
  for (; d < padded; d += 16) {
    add_pairs<R, 1>(weights, first, end, keep, values + d, padded, state, out + d, factor);
  }
}

// The same for the keys each query has: valid[r] of the tile's n, ascending in r. It reads no value past them, and
// half of the last pair where valid[r] is odd.
template <int R>
void add_values(const Pair* weights, const int* valid, int n, const Pair* values, std::int64_t padded,
                std::int64_t state, float* out, const __m512* factor) {
  constexpr Pair kBoth = 0xFFFFFFFF;
  const int common = valid[0] == n ? (n + 1) / 2 : valid[0] / 2;  // the tile's own last pair is zero past n
  add_pairs<R>(weights, 0, common, kBoth, values, padded, state, out, factor);
  const __m512 same = _mm512_set1_ps(1.0F);
  for (int r = 0; r < R; ++r) {
    const Pair* w = weights + r * kKeys;
    float* to = out + r * state;
    const int whole = valid[r] / 2;
    if (whole > common) add_pairs<1>(w, common, whole, kBoth, values, padded, state, to, &same);
    if (valid[r] % 2 != 0 && whole >= common)
      add_pairs<1>(w, whole, whole + 1, 0xFFFF, values, padded, state, to, &same);
  }
}

// Scratch: scaled queries [queries, padded / 2] in the room of [queries, padded] floats, states as Attend has them,
// packed keys and values.
template <class Row>
class AttendBf16 final {
 public:
  AttendBf16(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, float* scratch)
      : args_(args),
        item_(item),
        next_(next),
        queries_(args, item),
        head_(queries_.head()),
        num_queries_(queries_.count()),
        state_(queries_.state()),
        scaled_(scratch),
        chunk_(scaled_ + num_queries_ * head_.padded),
        merged_(chunk_ + num_queries_ * state_),
        keys_(reinterpret_cast<Pair*>(merged_ + num_queries_ * state_)),
        values_(keys_ + kKeys / 2 * head_.padded) {}

  void run(float* partials) {
    queries_.load(scaled_);
    round_queries();
    queries_.run_chunks(chunk_, merged_, partials, [this](int chunk, float* states) { run_chunk(chunk, states); });
  }

 private:
  // In place: a query's pairs take half of its room and lie at the start of it.
  void round_queries() {
    for (int query = 0; query < num_queries_; ++query) {
      float* row = scaled_ + query * head_.padded;
      for (int d = 0; d < head_.dim; d += 32) {
        const __m512 low = _mm512_load_ps(row + d);
        const __m512 high = d + 16 < head_.padded ? _mm512_load_ps(row + d + 16) : _mm512_setzero_ps();
        _mm512_store_si512(row + d / 2, to_bf16(low, high));
      }
    }
  }

  void run_chunk(int chunk, float* states) {
    queries_.start_chunk(states);
    const int first = chunk * kChunkKeys;
    const int end = queries_.position(num_queries_ - 1) + 1;
    Rows<Row> tiles[2];  // this one and the next
    locate<Vec>(args_, item_, first, tiles[0]);
    repeat_rows(tiles[0], tiles[0]);
    for (int start = first, turn = 0; start < std::min(end, first + kChunkKeys); start += kKeys, turn ^= 1) {
      const Rows<Row>& tile = tiles[turn];
      Rows<Row>& ahead = tiles[turn ^ 1];
      locate_ahead<Vec>(args_, item_, next_, start, ahead);
      repeat_rows(tile, ahead);
      pack_keys(head_, tile, ahead, keys_);
      pack_values(head_, tile, ahead, values_);
      for (int query = 0; query < num_queries_; query += 4) {
        switch (std::min(4, num_queries_ - query)) {
          case 1: run_queries<1>(query, start, tile.n, states); break;
          case 2: run_queries<2>(query, start, tile.n, states); break;
          case 3: run_queries<3>(query, start, tile.n, states); break;
          default: run_queries<4>(query, start, tile.n, states); break;
        }
      }
    }
  }

  template <int R>
  void run_queries(int first, int start, int n, float* states) {
    int valid[R];
    for (int r = 0; r < R; ++r) valid[r] = std::clamp(queries_.position(first + r) + 1 - start, 0, n);
    if (valid[R - 1] == 0) return;
    if (valid[R - 1] > kKeys / 2) {
      run_queries<R, kVectors>(first, valid, n, states);
    } else {
      run_queries<R, kVectors / 2>(first, valid, n, states);
    }
  }

  template <int R, int K>
  void run_queries(int first, const int* valid, int n, float* states) {
    alignas(64) float scores[R * kKeys];
    const auto* q = reinterpret_cast<const Pair*>(scaled_ + first * head_.padded);
    score<R, K>(head_.dim / 2, q, head_.padded, keys_, scores);
    __m512 factor[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      float* sum = states + (first + r) * state_ + head_.padded;
      factor[r] = soften<K>(scores + r * kKeys, valid[r], sum, sum + 16);
    }
    const auto* weights = reinterpret_cast<const Pair*>(scores);
    add_values<R>(weights, valid, n, values_, head_.padded, state_, states + first * state_, factor);
  }

  const AttentionArgs& args_;
  const AttentionItem& item_;
  const AttentionItem* const next_;
  const Queries<Vec> queries_;
  const HeadShape& head_;
  const int num_queries_;
  const std::int64_t state_;
  float* const scaled_;
  float* const chunk_;
  float* const merged_;
  Pair* const keys_;
  Pair* const values_;
};

void attend_bf16(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, float* scratch,
                 float* partials) {
  switch (args.kv.layout.dtype) {
    case DType::kF16: return AttendBf16<const Half*>(args, item, next, scratch).run(partials);
    case DType::kBF16: return AttendBf16<const BFloat*>(args, item, next, scratch).run(partials);
    case DType::kQ8_0: return AttendBf16<Q8Row>(args, item, next, scratch).run(partials);
    default: TANDEM_CHECK(false, "KV memory holds f32, f16, bf16 or q8_0");
  }
}

constexpr AttentionKernels kBf16Kernels = {.attend = attend_bf16, .merge = merge_chunks<Vec>};

}  // namespace

namespace avx512_bf16 {

void attention(const AttentionArgs& args, Team& team) {
  if (args.kv.layout.dtype == DType::kF32) return avx512::attention(args, team);
  run_attention(args, team, kBf16Kernels);
}

}  // namespace avx512_bf16

}  // namespace tandem::cpu

// Attention over a Vec: the queries of one item, the walk over its tiles (attention_tile_body.h), and the entry points
// from KV element types to instantiations. How the work is cut into items is attention.h. Scratch of a worker: scaled
// queries [queries, padded], chunk states and merged states [queries, state], a tile's transposed keys [padded, 32] and
// widened values [32, padded]. Compiled once per instruction set by the attention_<isa>.cpp files.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/status.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_tile_body.h"
#include "kernels/cpu/elements.h"
#include "tandem/backend.h"

namespace tandem::cpu {

// ---- queries ------------------------------------------------------------------------------------

// The queries of one item of attention: their scaled copies, their place in the batch, the states they end in.

// Query i is head i % group of the item's row i / group. Scaled queries [count, padded], states [count, state].
template <class V>
class Queries final {
 public:
  Queries(const AttentionArgs& args, const AttentionItem& item)
      : args_(args),
        item_(item),
        sequence_(args.sequences[static_cast<std::size_t>(item.sequence)]),
        head_(args.kv.layout.head_dim),
        group_(args.num_heads / args.kv.layout.num_kv_heads) {}

  const HeadShape& head() const { return head_; }
  int count() const { return item_.num_rows * group_; }
  std::int64_t state() const { return state_floats(head_.dim); }
  // The absolute position of the query's token, the last it attends to.
  int position(int query) const { return sequence_.position + item_.first_row + query / group_; }

  void load(float* to) const {
    const V scale = V::set(args_.scale);
    for (int query = 0; query < count(); ++query, to += head_.padded) {
      const float* from = args_.qkv.f32(row(query)) + column(query);
      for (int c = 0; c < head_.full; ++c) V::store(to + 16 * c, V::load(from + 16 * c) * scale);
      if (head_.half_tail) V::store(to + 16 * head_.full, V::load8(from + 16 * head_.full) * scale);
    }
  }

  void start_chunk(float* states) const {
    for (int query = 0; query < count(); ++query, states += state()) {
      std::fill_n(states, head_.padded + 16, 0.0F);
      std::fill_n(states + head_.padded + 16, 16, std::numeric_limits<float>::lowest());
    }
  }

  // A query merges the chunks it has keys in and no others: even a merge with an empty one may flip a zero's sign.
  void merge_chunk(int chunk, const float* states, float* merged) const {
    for (int query = 0; query < count(); ++query, states += state(), merged += state()) {
      if (position(query) < chunk * kChunkKeys) continue;
      if (chunk == 0) {
        std::copy_n(states, state(), merged);
      } else {
        merge_state<V>(head_, states, merged);
      }
    }
  }

  // Runs the item's chunk into `partials` when it is split, else all of them through run_chunk(chunk, states), and
  // writes its rows of out.
  template <class RunChunk>
  void run_chunks(float* chunk, float* merged, float* partials, const RunChunk& run_chunk) const {
    if (item_.partial >= 0) {
      run_chunk(item_.chunk, partials + item_.partial);
      return;
    }
    for (int c = 0; c < item_.num_chunks; ++c) {
      run_chunk(c, chunk);
      merge_chunk(c, chunk, merged);
    }
    finish(merged);
  }

  // Writes the item's rows of out.
  void finish(const float* merged) const {
    for (int query = 0; query < count(); ++query, merged += state()) {
      const V sum = V::set(sum_lanes(V::load(merged + head_.padded)));
      float* to = args_.out.f32(row(query)) + column(query);
      for (int c = 0; c < head_.full; ++c) V::store(to + 16 * c, V::load(merged + 16 * c) / sum);
      if (head_.half_tail) V::store8(to + 16 * head_.full, V::load(merged + 16 * head_.full) / sum);
    }
  }

 private:
  std::int64_t row(int query) const { return sequence_.first_row + item_.first_row + query / group_; }
  std::int64_t column(int query) const { return (std::int64_t{item_.kv_head} * group_ + query % group_) * head_.dim; }

  const AttentionArgs& args_;
  const AttentionItem& item_;
  const SequenceRows& sequence_;
  const HeadShape head_;
  const int group_;
};

// ---- one item -----------------------------------------------------------------------------------

// The arithmetic of attention.h over a Vec. Scratch of a worker: scaled queries [queries, padded], chunk states and
// merged states [queries, state], a tile's transposed keys [padded, 32] and widened values [32, padded].

template <class V, class Row>
class Attend final {
 public:
  Attend(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, float* scratch)
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
        wide_(merged_ + num_queries_ * state_) {}

  void run(float* partials) {
    queries_.load(scaled_);
    queries_.run_chunks(chunk_, merged_, partials, [this](int chunk, float* states) { run_chunk(chunk, states); });
  }

 private:
  void run_chunk(int chunk, float* states) {
    queries_.start_chunk(states);
    const int first = chunk * kChunkKeys;
    const int end = queries_.position(num_queries_ - 1) + 1;
    TileRows<Row> tiles[2];  // this one and the next
    locate<V>(args_, item_, first, tiles[0]);
    for (int start = first, turn = 0; start < std::min(end, first + kChunkKeys); start += kTileKeys, turn ^= 1) {
      const TileRows<Row>& tile = tiles[turn];
      TileRows<Row>& ahead = tiles[turn ^ 1];
      locate_ahead<V>(args_, item_, next_, start, ahead);
      if (num_queries_ < kWideQueries) {
        run_tile(start, tile, ahead, states);
      } else {
        run_wide_tile(start, tile, states);
      }
    }
  }

  void run_tile(int start, const TileRows<Row>& tile, const TileRows<Row>& ahead, float* states) {
    for (int first = 0; first < num_queries_; first += 4) {
      const TileRows<Row>* once = first == 0 ? &ahead : nullptr;
      switch (std::min(4, num_queries_ - first)) {
        case 1: run_queries<1>(first, start, tile, once, states); break;
        case 2: run_queries<2>(first, start, tile, once, states); break;
        case 3: run_queries<3>(first, start, tile, once, states); break;
        default: run_queries<4>(first, start, tile, once, states); break;
      }
    }
  }

  template <int R>
  void run_queries(int first, int start, const TileRows<Row>& tile, const TileRows<Row>* ahead, float* states) {
    int valid[R];
    if (!count_valid<R>(first, start, tile, valid)) return;
    alignas(64) float scores[R * kTileKeys] = {};
    scores_by_dim<V, Row, R>(head_, scaled_ + first * head_.padded, tile.keys, valid[R - 1], ahead, scores);
    float factor[R];
    for (int r = 0; r < R; ++r) {
      float* sum = states + (first + r) * state_ + head_.padded;
      factor[r] = softmax_update<V>(scores + r * kTileKeys, valid[r], sum, sum + 16);
    }
    add_values<V, Row, R>(head_, scores, valid, tile.values, state_, states + first * state_, factor);
  }

  void run_wide_tile(int start, const TileRows<Row>& tile, float* states) {
    widen<V>(head_, tile, wide_, wide_ + kTileKeys * head_.padded);
    int first = 0;
    for (; first + kWideBlock<V> <= num_queries_; first += kWideBlock<V>) {
      run_wide<kWideBlock<V>>(first, start, tile, states);
    }
    for (; first < num_queries_; ++first) run_wide<1>(first, start, tile, states);
  }

  template <int R>
  void run_wide(int first, int start, const TileRows<Row>& tile, float* states) {
    int valid[R];
    if (!count_valid<R>(first, start, tile, valid)) return;
    attend_wide<V, R>(head_, scaled_ + first * head_.padded, wide_, wide_ + kTileKeys * head_.padded, valid,
                      states + first * state_);
  }

  // How many of the tile's keys each query attends to; false if none does to any.
  template <int R>
  bool count_valid(int first, int start, const TileRows<Row>& tile, int* valid) const {
    for (int r = 0; r < R; ++r) valid[r] = std::clamp(queries_.position(first + r) + 1 - start, 0, tile.n);
    return valid[R - 1] != 0;
  }

  const AttentionArgs& args_;
  const AttentionItem& item_;
  const AttentionItem* const next_;
  const Queries<V> queries_;
  const HeadShape& head_;
  const int num_queries_;
  const std::int64_t state_;
  float* const scaled_;
  float* const chunk_;
  float* const merged_;
  float* const wide_;  // keys, then values
};

// ---- entry points -------------------------------------------------------------------------------

// The entry points of attention for one instruction set: from KV element types to instantiations of the body.

template <class V>
void attend(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, float* scratch,
            float* partials) {
  switch (args.kv.layout.dtype) {
    case DType::kF16: return Attend<V, const Half*>(args, item, next, scratch).run(partials);
    case DType::kBF16: return Attend<V, const BFloat*>(args, item, next, scratch).run(partials);
    case DType::kF32: return Attend<V, const float*>(args, item, next, scratch).run(partials);
    case DType::kQ8_0: return Attend<V, Q8Row>(args, item, next, scratch).run(partials);
    default: TANDEM_CHECK(false, "KV memory holds f32, f16, bf16 or q8_0");
  }
}

template <class V>
void merge_chunks(const AttentionArgs& args, const AttentionItem& item, float* scratch, const float* partials) {
  const Queries<V> queries(args, item);
  const std::int64_t chunk_floats = queries.count() * queries.state();
  for (int c = 0; c < item.num_chunks; ++c) {
    queries.merge_chunk(c, partials + item.partial + c * chunk_floats, scratch);
  }
  queries.finish(scratch);
}

template <class V>
inline constexpr AttentionKernels kAttentionKernels = {.attend = attend<V>, .merge = merge_chunks<V>};

}  // namespace tandem::cpu

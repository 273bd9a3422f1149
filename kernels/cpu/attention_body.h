// The arithmetic of attention.h over a Vec. Scratch of a worker: scaled queries [queries, padded], chunk states and
// merged states [queries, state], a tile's transposed keys [padded, 32] and widened values [32, padded].
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_queries.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/attention_scores.h"
#include "kernels/cpu/attention_values.h"

namespace tandem::cpu {

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
        run_tile<false>(start, tile, tile.values, ahead, states);
      } else {
        const float* values[kTileKeys];
        widen<V>(head_, tile, wide_, wide_ + kTileKeys * head_.padded, values);
        run_tile<true>(start, tile, values, ahead, states);
      }
    }
  }

  template <bool kWide, class U>
  void run_tile(int start, const TileRows<Row>& tile, const U* values, const TileRows<Row>& ahead, float* states) {
    for (int first = 0; first < num_queries_; first += 4) {
      const TileRows<Row>* once = first == 0 ? &ahead : nullptr;
      switch (std::min(4, num_queries_ - first)) {
        case 1: run_queries<kWide, U, 1>(first, start, tile, values, once, states); break;
        case 2: run_queries<kWide, U, 2>(first, start, tile, values, once, states); break;
        case 3: run_queries<kWide, U, 3>(first, start, tile, values, once, states); break;
        default: run_queries<kWide, U, 4>(first, start, tile, values, once, states); break;
      }
    }
  }

  template <bool kWide, class U, int R>
  void run_queries(int first, int start, const TileRows<Row>& tile, const U* values, const TileRows<Row>* ahead,
                   float* states) {
    int valid[R];
    for (int r = 0; r < R; ++r) valid[r] = std::clamp(queries_.position(first + r) + 1 - start, 0, tile.n);
    if (valid[R - 1] == 0) return;
    alignas(64) float scores[R * kTileKeys] = {};
    const float* q = scaled_ + first * head_.padded;
    if constexpr (!kWide) {
      scores_by_dim<V, Row, R>(head_, q, tile.keys, valid[R - 1], ahead, scores);
    } else if constexpr (V::kRegisters >= 32 || R == 1) {
      scores_by_key<typename V::Native, R>(head_, q, wide_, scores);
    } else {  // 16 registers hold the sums of two queries
      constexpr int kRest = R - 2;
      scores_by_key<typename V::Native, 2>(head_, q, wide_, scores);
      if constexpr (kRest > 0) {
        scores_by_key<typename V::Native, kRest>(head_, q + 2 * head_.padded, wide_, scores + 2 * kTileKeys);
      }
    }
    float factor[R];
    for (int r = 0; r < R; ++r) {
      float* sum = states + (first + r) * state_ + head_.padded;
      factor[r] = softmax_update<V>(scores + r * kTileKeys, valid[r], sum, sum + 16);
    }
    add_values<V, U, R>(head_, scores, valid, values, state_, states + first * state_, factor);
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

}  // namespace tandem::cpu

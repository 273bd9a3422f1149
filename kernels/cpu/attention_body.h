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
#include "kernels/cpu/attention_wide.h"

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

}  // namespace tandem::cpu

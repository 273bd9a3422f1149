// The queries of one item of attention: their scaled copies, their place in the batch, the states they end in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/attention_values.h"
#include "tandem/backend.h"

namespace tandem::cpu {

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

}  // namespace tandem::cpu

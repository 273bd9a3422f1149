// Parallel over (sequence, tile of rows, kv head), and for tiles of few queries over chunks of keys too when that
// alone is too little for the team, as for one long sequence that decodes. Per item moves the keys and values of its
// chunks once, 2 x head_dim elements per position.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "base/status.h"

namespace tandem::cpu {
namespace {

// Partial states stay small beside the last-level cache; above this no context is split.
constexpr std::int64_t kMaxPartialFloats = std::int64_t{4} << 20;
// Items per worker from which on splitting no longer helps the balance.
constexpr std::int64_t kItemsPerWorker = 4;
// Waking the team takes as long as about so many multiplications of scores or floats of states to merge.
constexpr std::int64_t kWorthWakingScores = 1 << 15;
constexpr std::int64_t kWorthWakingMerge = 1 << 14;

std::int32_t ceil_div(std::int32_t a, std::int32_t b) { return (a + b - 1) / b; }

struct Plan {
  std::int64_t num_items = 0;
  std::int64_t partial_floats = 0;
  std::int64_t score_elements = 0;  // queries x keys x head_dim, a measure of the work
  std::int32_t tile_rows = 1;
  std::int32_t max_queries = 1;
  bool split = false;  // tiles of few queries by chunks
};

struct Tile {
  std::int32_t sequence = 0;
  std::int32_t first_row = 0;
  std::int32_t num_rows = 0;
  std::int32_t num_keys = 0;
  std::int32_t num_chunks = 0;
  bool few = false;  // queries: worth splitting over chunks
};

// Calls visit(tile) for every tile of rows, the costliest of a sequence first.
template <class Visit>
void for_tiles(const AttentionArgs& args, std::int32_t tile_rows, const Visit& visit) {
  const std::int32_t group = args.num_heads / args.kv.layout.num_kv_heads;
  for (std::size_t s = 0; s < args.sequences.size(); ++s) {
    const SequenceRows& rows = args.sequences[s];
    for (std::int32_t t = ceil_div(rows.num_rows, tile_rows) - 1; t >= 0; --t) {
      Tile tile;
      tile.sequence = static_cast<std::int32_t>(s);
      tile.first_row = t * tile_rows;
      tile.num_rows = std::min(tile_rows, rows.num_rows - tile.first_row);
      tile.num_keys = rows.position + tile.first_row + tile.num_rows;
      tile.num_chunks = ceil_div(tile.num_keys, kChunkKeys);
      tile.few = tile.num_rows * group < kWideQueries && tile.num_chunks > 1;
      visit(tile);
    }
  }
}

Plan make_plan(const AttentionArgs& args, int num_workers) {
  const KvLayout& layout = args.kv.layout;
  const std::int32_t group = args.num_heads / layout.num_kv_heads;
  Plan plan;
  plan.tile_rows = std::max(1, kItemQueries / group);
  plan.max_queries = plan.tile_rows * group;
  std::int64_t whole = 0;
  std::int64_t split = 0;
  for_tiles(args, plan.tile_rows, [&](const Tile& tile) {
    whole += layout.num_kv_heads;
    split += std::int64_t{layout.num_kv_heads} * (tile.few ? tile.num_chunks : 1);
    const std::int64_t queries = std::int64_t{tile.num_rows} * args.num_heads;
    if (tile.few) plan.partial_floats += queries * tile.num_chunks * state_floats(layout.head_dim);
    plan.score_elements += queries * layout.head_dim * tile.num_keys;
  });
  plan.split = num_workers > 1 && whole < kItemsPerWorker * num_workers && plan.partial_floats > 0 &&
               plan.partial_floats <= kMaxPartialFloats;
  plan.num_items = plan.split ? split : whole;
  if (!plan.split) plan.partial_floats = 0;
  return plan;
}

// A head's partial states lie together, chunk after chunk.
void fill_items(const AttentionArgs& args, const Plan& plan, AttentionItem* items) {
  const KvLayout& layout = args.kv.layout;
  const std::int32_t group = args.num_heads / layout.num_kv_heads;
  std::int64_t partial = 0;
  for_tiles(args, plan.tile_rows, [&](const Tile& tile) {
    const bool split = plan.split && tile.few;
    const std::int64_t states = std::int64_t{tile.num_rows} * group * state_floats(layout.head_dim);
    for (std::int32_t c = 0; c < (split ? tile.num_chunks : 1); ++c) {
      for (std::int32_t h = 0; h < layout.num_kv_heads; ++h) {
        *items++ = {.sequence = tile.sequence,
                    .kv_head = h,
                    .first_row = tile.first_row,
                    .num_rows = tile.num_rows,
                    .chunk = c,
                    .num_chunks = tile.num_chunks,
                    .partial = split ? partial + (std::int64_t{h} * tile.num_chunks + c) * states : -1};
      }
    }
    if (split) partial += layout.num_kv_heads * tile.num_chunks * states;
  });
}

// Calls visit(worker, i) once for every i in [0, count), by whichever worker is free when `wake`, else here.
template <class Visit>
void for_items(Team& team, bool wake, std::int64_t count, const Visit& visit) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&](int worker, int) {
    for (std::int64_t i = next++; i < count; i = next++) visit(worker, i);
  };
  if (wake && count > 1 && team.active() > 1) {
    team.run(work);
  } else {
    work(0, 1);
  }
}

}  // namespace

std::int64_t attention_scratch_floats(int max_queries, int head_dim) {
  const std::int64_t dim = padded_dim(head_dim);
  return max_queries * (dim + 2 * state_floats(head_dim)) + 2 * kTileKeys * dim;
}

void run_attention(const AttentionArgs& args, Team& team, const AttentionKernels& kernels) {
  const KvLayout& layout = args.kv.layout;
  TANDEM_CHECK(layout.head_dim > 0 && layout.head_dim % 8 == 0 && layout.head_dim <= kMaxHeadDim,
               "attention takes a head_dim that is a multiple of 8, at most 256");
  TANDEM_CHECK(layout.num_kv_heads > 0 && args.num_heads % layout.num_kv_heads == 0 && layout.block_tokens > 0,
               "query heads come in equal groups, one per kv head");
  const int num_workers = team.active();
  const Plan plan = make_plan(args, num_workers);
  if (plan.num_items == 0) return;

  const std::size_t item_bytes = static_cast<std::size_t>(plan.num_items) * sizeof(AttentionItem);
  const std::size_t partials_at = (item_bytes + 63) / 64 * 64;
  std::byte* shared = team.shared_scratch(partials_at + static_cast<std::size_t>(plan.partial_floats) * sizeof(float));
  auto* items = reinterpret_cast<AttentionItem*>(shared);
  auto* partials = reinterpret_cast<float*>(shared + partials_at);
  fill_items(args, plan, items);

  const std::size_t scratch_bytes =
      static_cast<std::size_t>(attention_scratch_floats(plan.max_queries, layout.head_dim)) * sizeof(float);
  constexpr int kMaxWorkers = 1024;
  float* scratch[kMaxWorkers];
  TANDEM_CHECK(num_workers <= kMaxWorkers, "a team has at most 1024 workers");
  for (int w = 0; w < num_workers; ++w) scratch[w] = reinterpret_cast<float*>(team.worker_scratch(w, scratch_bytes));

  for_items(team, plan.score_elements >= kWorthWakingScores, plan.num_items, [&](int worker, std::int64_t i) {
    // While the workers keep step, the item this one will take next.
    const AttentionItem* next = i + num_workers < plan.num_items ? items + i + num_workers : nullptr;
    kernels.attend(args, items[i], next, scratch[worker], partials);
  });
  if (!plan.split) return;
  for_items(team, plan.partial_floats >= kWorthWakingMerge, plan.num_items, [&](int worker, std::int64_t i) {
    if (items[i].partial >= 0 && items[i].chunk == 0) kernels.merge(args, items[i], scratch[worker], partials);
  });
}

}  // namespace tandem::cpu

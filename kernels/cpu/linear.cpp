// Splits the grid of (weight tile, activation panel) over the team, tile by tile, so that each weight byte is read
// from memory by one worker, once; activations (1.5 bytes a value) come from the caches. A single panel, bound by
// memory, is split evenly; several panels are taken in shrinking pieces, so that a core which another process
// slows down gets less of the work.
#include "kernels/cpu/linear.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "kernels/cpu/ops.h"

namespace tandem::cpu {
namespace {

constexpr std::size_t kMaxWeights = 3;
// Up to this many rows each worker prepares a panel of its own: cheaper than a second meeting of the team.
constexpr std::int64_t kPrivateRows = 4;
// Weight tiles that stay in the L1 or L2 cache while the panels pass by.
constexpr std::int64_t kTileGroup = 4;
constexpr int kMaxPanelRows = 8;

// Rows split into panels of nearly equal height.
struct Split {
  std::int64_t rows;
  std::int64_t count;

  Split(std::int64_t num_rows, const LinearKernels& kernels)
      : rows(num_rows),
        count(num_rows <= kernels.lone_rows ? 1 : (num_rows + kernels.panel_rows - 1) / kernels.panel_rows) {}
  Panels panels() const { return count == 1 ? Panels::kOne : Panels::kMany; }
  std::int64_t first_row(std::int64_t panel) const { return panel * (rows / count) + std::min(panel, rows % count); }
  int height(std::int64_t panel) const { return static_cast<int>(rows / count + (panel < rows % count ? 1 : 0)); }
};

// The forms of prepared activations that some weight asks for, one after the other.
struct Prepared {
  enum Form { kQuants, kFloats, kPairs, kNumForms };

  const LinearKernels& kernels;
  std::array<std::int64_t, kNumForms> row_bytes{};  // 0: not asked for
  std::array<std::int64_t, kNumForms> offset{};
  std::int64_t bytes = 0;

  Prepared(const LinearArgs& args, const LinearKernels& linear_kernels) : kernels(linear_kernels) {
    const std::int64_t cols = args.x.cols;
    for (const Weight& weight : args.weights) {
      const Form form = form_for(weight.dtype);
      row_bytes[form] = form == kQuants   ? cols / kBlockCols * (kBlockCols + kPanelTrailer)
                        : form == kFloats ? cols * std::int64_t{sizeof(float)}
                                          : (cols + 1) / 2 * 4;
    }
    for (std::size_t form = 0; form < kNumForms; ++form) {
      offset[form] = bytes;
      bytes += (args.x.rows * row_bytes[form] + 63) / 64 * 64;
    }
  }
  Form form_for(DType dtype) const {
    if (is_quantised(dtype)) return kQuants;
    return dtype == DType::kBF16 && kernels.round_row != nullptr ? kPairs : kFloats;
  }
  std::byte* panel(std::byte* base, Form form, std::int64_t first_row) const {
    return base + offset[form] + first_row * row_bytes[form];
  }
};

void prepare_rows(const LinearArgs& args, const Split& split, const Prepared& prepared, std::byte* base,
                  std::int64_t begin, std::int64_t end) {
  std::int64_t panel = 0;
  while (begin < end && split.first_row(panel) + split.height(panel) <= begin) ++panel;
  for (std::int64_t row = begin; row < end; ++row) {
    if (row == split.first_row(panel) + split.height(panel)) ++panel;
    const std::int64_t first = split.first_row(panel);
    const int height = split.height(panel);
    const int lane = static_cast<int>(row - first);
    const float* x = args.x.f32(row);
    if (prepared.row_bytes[Prepared::kQuants] != 0) {
      quantise_row(x, args.x.cols / kBlockCols, prepared.panel(base, Prepared::kQuants, first), height, lane);
    }
    if (prepared.row_bytes[Prepared::kPairs] != 0) {
      prepared.kernels.round_row(x, args.x.cols, prepared.panel(base, Prepared::kPairs, first), height, lane);
    }
    if (prepared.row_bytes[Prepared::kFloats] != 0) {
      std::byte* to = prepared.panel(base, Prepared::kFloats, first) + lane * std::int64_t{sizeof(float)};
      const std::int64_t step = height * std::int64_t{sizeof(float)};
      for (std::int64_t k = 0; k < args.x.cols; ++k) std::memcpy(to + k * step, x + k, sizeof(float));
    }
  }
}

// One weight's part of the grid, for one worker.
struct Product {
  const LinearArgs& args;
  const LinearKernels& kernels;
  const Split& split;
  const Prepared& prepared;
  const Weight& weight;
  std::int64_t column;  // of y, where this weight's outputs begin
  std::byte* activations;

  // Tiles [tile, tile + n) with panels [begin, end).
  void multiply(std::int64_t tile, std::int64_t n, std::int64_t begin, std::int64_t end) const {
    const std::int64_t size = tile_bytes(weight.dtype, weight.cols);
    const std::int64_t group = split.count == 1 ? n : kTileGroup;
    for (const std::int64_t last = tile + n; tile < last; tile += group) {
      for (std::int64_t panel = begin; panel < end; ++panel) {
        multiply_panel(weight.data + tile * size, tile, std::min(group, last - tile), panel);
      }
    }
  }

  void multiply_panel(const std::byte* tiles, std::int64_t tile, std::int64_t n, std::int64_t panel) const {
    const std::int64_t first = split.first_row(panel);
    const int height = split.height(panel);
    const std::byte* x = prepared.panel(activations, prepared.form_for(weight.dtype), first);
    const TileKernel kernel = kernels.kernel(weight.dtype, height, split.panels());
    float* y = args.y.f32(first) + column + tile * kTileRows;
    const std::int64_t cols = std::min(n * kTileRows, weight.rows - tile * kTileRows);
    const std::int64_t whole = cols / kTileRows;
    if (whole != 0) kernel(tiles, whole, weight.cols, x, y, args.y.stride);
    if (const std::int64_t rest = cols - whole * kTileRows; rest != 0) {
      std::array<float, std::size_t{kMaxPanelRows} * kTileRows> edge;
      kernel(tiles + whole * tile_bytes(weight.dtype, weight.cols), 1, weight.cols, x, edge.data(), kTileRows);
      for (int row = 0; row < height; ++row) {
        std::copy_n(edge.data() + row * kTileRows, rest, y + row * args.y.stride + whole * kTileRows);
      }
    }
    if (args.bias == nullptr) return;
    const float* bias = args.bias + column + tile * kTileRows;
    for (int row = 0; row < height; ++row) {
      for (std::int64_t i = 0; i < cols; ++i) y[row * args.y.stride + i] += bias[i];
    }
  }

  // Cells [begin, end) of the grid in tile-major order.
  void multiply_cells(std::int64_t begin, std::int64_t end) const {
    const std::int64_t count = split.count;
    while (begin < end) {
      const std::int64_t tile = begin / count;
      const std::int64_t panel = begin % count;
      if (panel == 0 && end - begin >= count) {
        const std::int64_t n = (end - begin) / count;
        multiply(tile, n, 0, count);
        begin += n * count;
      } else {
        const std::int64_t panel_end = std::min(count, panel + end - begin);
        multiply(tile, 1, panel, panel_end);
        begin += panel_end - panel;
      }
    }
  }
};

// Takes the next piece of [next, end): half of a worker's fair part of what is left, rounded up to whole `unit`s.
std::int64_t take(std::atomic<std::int64_t>& next, std::int64_t end, int num_workers, std::int64_t unit,
                  std::int64_t& begin) {
  begin = next.load(std::memory_order_relaxed);
  while (begin < end) {
    const std::int64_t units = (end - begin) / (2 * num_workers) / unit + 1;
    const std::int64_t piece_end = std::min(end, begin + units * unit);
    if (next.compare_exchange_weak(begin, piece_end, std::memory_order_relaxed)) return piece_end;
  }
  return begin;
}

void check_shapes(const LinearArgs& args) {
  TANDEM_CHECK(!args.weights.empty() && args.weights.size() <= kMaxWeights, "linear takes one to three weights");
  std::int64_t outputs = 0;
  for (const Weight& weight : args.weights) {
    TANDEM_CHECK(weight.cols == args.x.cols, "linear's weights must have as many columns as its input");
    outputs += weight.rows;
  }
  TANDEM_CHECK(args.x.dtype == DType::kF32 && args.y.dtype == DType::kF32, "linear reads and writes float32");
  TANDEM_CHECK(args.y.rows >= args.x.rows && args.y.cols >= outputs, "linear's output is too small");
}

}  // namespace

void run_linear(const LinearArgs& args, Team& team, const LinearKernels& kernels) {
  check_shapes(args);
  const std::int64_t rows = args.x.rows;
  if (rows == 0) return;
  const Split split(rows, kernels);
  const Prepared prepared(args, kernels);
  const bool is_private = rows <= kPrivateRows && team.active() > 1;
  std::byte* shared = team.shared_scratch(static_cast<std::size_t>(prepared.bytes * (is_private ? team.active() : 1)));
  if (!is_private) {
    team.run([&](int worker, int num_workers) {
      prepare_rows(args, split, prepared, shared, rows * worker / num_workers, rows * (worker + 1) / num_workers);
    });
  }
  std::int64_t all_cells = 0;
  for (const Weight& weight : args.weights) all_cells += num_tiles(weight.rows) * split.count;
  std::atomic<std::int64_t> next_cell{0};
  team.run([&](int worker, int num_workers) {
    std::byte* activations = shared;
    if (is_private) {
      activations += prepared.bytes * worker;
      prepare_rows(args, split, prepared, activations, 0, rows);
    }
    const auto multiply = [&](std::int64_t begin, std::int64_t end) {
      std::int64_t first_cell = 0;
      std::int64_t column = 0;
      for (const Weight& weight : args.weights) {
        const std::int64_t cells = num_tiles(weight.rows) * split.count;
        const Product product{args, kernels, split, prepared, weight, column, activations};
        product.multiply_cells(std::clamp<std::int64_t>(begin - first_cell, 0, cells),
                               std::clamp<std::int64_t>(end - first_cell, 0, cells));
        first_cell += cells;
        column += weight.rows;
      }
    };
    if (split.count == 1 || num_workers == 1) {
      multiply(all_cells * worker / num_workers, all_cells * (worker + 1) / num_workers);
      return;
    }
    // Pairs of tiles, if there are enough, as kernels for several panels like them.
    const std::int64_t unit = all_cells < 16 * num_workers * split.count ? split.count : 2 * split.count;
    std::int64_t begin = 0;
    while (true) {
      const std::int64_t end = take(next_cell, all_cells, num_workers, unit, begin);
      if (begin >= end) return;
      multiply(begin, end);
    }
  });
}

}  // namespace tandem::cpu

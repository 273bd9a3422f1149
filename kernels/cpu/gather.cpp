// gather_rows: parallel over rows; moves 8 bytes per element.
#include <cstdint>
#include <cstring>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/rows.h"

namespace tandem::cpu {
namespace {

void gather(const GatherRowsArgs& args, Team& team) {
  const auto rows = static_cast<std::int64_t>(args.rows.size());
  for_rows(team, rows, args.x.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::memcpy(args.out.f32(row), args.x.f32(args.rows[static_cast<std::size_t>(row)]),
                  static_cast<std::size_t>(args.x.cols) * sizeof(float));
    }
  });
}

}  // namespace

void avx2::gather_rows(const GatherRowsArgs& args, Team& team) { gather(args, team); }
void avx512::gather_rows(const GatherRowsArgs& args, Team& team) { gather(args, team); }

}  // namespace tandem::cpu

// rope_angles: parallel over rows. The angle is a float32 product, as the reference models compute it; its cosine and
// sine are taken in double, so that a large position loses nothing to the reduction of the argument.
#include <cmath>
#include <cstdint>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/rows.h"

namespace tandem::cpu {
namespace {

void write_angles(const RopeAnglesArgs& args, Team& team) {
  constexpr std::int64_t kElementsPerAngle = 64;  // a cosine and a sine cost about this many copied elements
  const std::int64_t work = kElementsPerAngle * static_cast<std::int64_t>(args.inverse_frequency.size());
  for_rows(team, static_cast<std::int64_t>(args.positions.size()), work, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* out = args.cos_sin.f32(row);
      const auto position = static_cast<float>(args.positions[static_cast<std::size_t>(row)]);
      for (const float frequency : args.inverse_frequency) {
        const double angle = static_cast<double>(position * frequency);
        *out++ = static_cast<float>(std::cos(angle)) * args.scale;
        *out++ = static_cast<float>(std::sin(angle)) * args.scale;
      }
    }
  });
}

}  // namespace

void avx2::rope_angles(const RopeAnglesArgs& args, Team& team) { write_angles(args, team); }
void avx512::rope_angles(const RopeAnglesArgs& args, Team& team) { write_angles(args, team); }

}  // namespace tandem::cpu

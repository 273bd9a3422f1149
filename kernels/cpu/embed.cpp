// Gathers rows of the packed table, rows split over the team. One routine for every instruction set: it reads a
// few hundred values a token, which no kernel would make noticeably faster.
#include "kernels/cpu/ops.h"
#include "kernels/cpu/pack.h"

namespace tandem::cpu {
namespace {

void embed_rows(const EmbedArgs& args, Team& team) {
  const auto num_tokens = static_cast<std::int64_t>(args.tokens.size());
  TANDEM_CHECK(args.out.dtype == DType::kF32 && args.out.cols == args.table.cols && args.out.rows >= num_tokens,
               "embed writes [tokens, hidden] floats");
  team.run([&](int worker, int num_workers) {
    const std::int64_t end = num_tokens * (worker + 1) / num_workers;
    for (std::int64_t row = num_tokens * worker / num_workers; row < end; ++row) {
      const TokenId token = args.tokens[static_cast<std::size_t>(row)];
      TANDEM_CHECK(token >= 0 && token < args.table.rows, "a token id reached the model that its vocabulary lacks");
      unpack_row(args.table, token, args.out.f32(row));
    }
  });
}

}  // namespace

void avx2::embed(const EmbedArgs& args, Team& team) { embed_rows(args, team); }
void avx512::embed(const EmbedArgs& args, Team& team) { embed_rows(args, team); }

}  // namespace tandem::cpu

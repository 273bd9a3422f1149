// The composition root's front door: command lines to option structs. The only file that includes CLI11.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/status.h"
#include "cli/commands.h"
#include "cli/server_options.h"
#include "fmt/core.h"

namespace tandem {
namespace {

constexpr int kUsageError = 2;

// The flags of one subcommand, made from the option table; what was given is applied over the configuration file.
class ServerFlags {
 public:
  enum class Scope { kServer, kLocal };  // kLocal: no endpoint, so its flags are left out of the help

  ServerFlags(CLI::App& app, Scope scope) : table_(server_options(config_)), texts_(table_.options().size()) {
    app.add_option("--config", config_file_, "YAML file of these options, without the dashes; flags win over it")
        ->type_name("FILE");
    app.add_option("MODEL", positional_model_, "the same as --model");
    for (std::size_t index = 0; index < table_.options().size(); ++index) {
      const Option& option = table_.options()[index];
      CLI::Option* flag = app.add_option("--" + option.name, texts_[index], option.help);
      flag->type_name(option.value_name)->default_str(option.default_text);
      if (option.kind == OptionKind::kFlag) flag->expected(0, 1);
      if (option.kind != OptionKind::kFlag) flag->expected(1);
      // Or a flag would swallow the MODEL that stands behind its value.
      flag->allow_extra_args(false);
      if (option.kind == OptionKind::kList) {
        flag->delimiter(',')->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
      } else {
        flag->take_last();
      }
      if (scope == Scope::kLocal && is_endpoint_option(option.name)) flag->group("");
      flags_.push_back(flag);
    }
  }

  absl::Status apply() {
    if (!config_file_.empty()) TANDEM_TRY(apply_yaml_file(config_file_, table_));
    for (std::size_t index = 0; index < flags_.size(); ++index) {
      if (flags_[index]->count() == 0) continue;
      const Option& option = table_.options()[index];
      std::vector<std::string> values = texts_[index];
      if (option.kind == OptionKind::kFlag && (values.empty() || values.front().empty())) values = {"true"};
      if (const absl::Status status = option.assign(values); !status.ok()) return annotate(status, "--" + option.name);
    }
    if (!positional_model_.empty()) {
      if (!config_.model.empty() && config_.model != positional_model_) {
        return absl::InvalidArgumentError(
            fmt::format("two models are given, \"{}\" and \"{}\"; name one", config_.model, positional_model_));
      }
      config_.model = positional_model_;
    }
    return check_server_config(config_);
  }

  const ServerConfig& config() const { return config_; }
  std::string did_you_mean(std::string_view flag) const {
    return flag.starts_with("--") ? table_.did_you_mean(flag.substr(2, flag.find('=') - 2)) : std::string();
  }

 private:
  static bool is_endpoint_option(std::string_view name) {
    static constexpr std::string_view kNames[] = {"host",           "port",
                                                  "grpc-port",      "http-threads",
                                                  "max-body-bytes", "max-header-bytes",
                                                  "api-keys",       "cors-allow-origins",
                                                  "admin-api-key",  "max-queued-requests",
                                                  "drain-grace-s",  "served-model-name"};
    return std::ranges::find(kNames, name) != std::end(kNames);
  }

  ServerConfig config_;
  OptionTable table_;
  std::string config_file_;
  std::string positional_model_;
  std::vector<std::vector<std::string>> texts_;
  std::vector<CLI::Option*> flags_;
};

const std::vector<std::pair<std::string, LogLevel>> kLogLevels{
    {"trace", LogLevel::kTrace},     {"debug", LogLevel::kDebug}, {"info", LogLevel::kInfo},
    {"warning", LogLevel::kWarning}, {"error", LogLevel::kError}, {"off", LogLevel::kOff}};
const std::vector<std::pair<std::string, LogFormat>> kLogFormats{{"text", LogFormat::kText},
                                                                 {"json", LogFormat::kJson}};
const std::vector<std::pair<std::string, DType>> kKvTypes{
    {"f16", DType::kF16}, {"bf16", DType::kBF16}, {"f32", DType::kF32}, {"q8_0", DType::kQ8_0}};

// One of some words; the help lists them.
template <class Target, class Value>
void add_choice(CLI::App& app, const std::string& name, Target& target,
                const std::vector<std::pair<std::string, Value>>& choices, const std::string& help) {
  std::string words;
  for (const auto& choice : choices) words += (words.empty() ? "" : "|") + choice.first;
  app.add_option(name, target, help)->transform(CLI::CheckedTransformer(choices))->option_text(words);
}

template <class Options>
void add_process_flags(CLI::App& app, Options& options) {
  app.add_option("--parent-pid", options.parent_pid, "end when this process ends; 0: never");
  add_choice(app, "--log-level", options.log_level, kLogLevels, "least important log lines to write");
  add_choice(app, "--log-format", options.log_format, kLogFormats, "of log lines");
}

void add_worker_flags(CLI::App& app, WorkerCommandOptions& options) {
  app.add_option("--owner-socket", options.owner_socket, "address of the memory owner")->required();
  app.add_option("--model", options.model, "model file or folder")->required();
  app.add_option("--isa", options.isa, "instruction set of the kernels");
  app.add_option("--threads", options.threads, "cores; 0: all");
  app.add_option("--lane", options.lane, "0: prefill, 1: decode")->required();
  app.add_option("--epoch", options.epoch, "which life of the lane this is");
  add_choice(app, "--kv-dtype", options.kv_dtype, kKvTypes, "type of keys and values");
  app.add_option("--block-tokens", options.block_tokens);
  app.add_option("--num-blocks", options.num_blocks)->required();
  app.add_option("--max-rows", options.max_rows, "most tokens in one step")->required();
  add_process_flags(app, options);
}

void add_generate_flags(CLI::App& app, GenerateOptions& options) {
  app.add_option("--prompt", options.prompt, "what the user says");
  app.add_option("--messages", options.messages_file, "JSON list of messages instead; -: standard input");
  app.add_flag("--raw", options.raw, "take the prompt as it is, without the chat template");
  app.add_option("--max-tokens", options.max_tokens, "most tokens to generate")->capture_default_str();
  app.add_option("--temperature", options.temperature, "0: greedy")->check(CLI::Range(0.0, 2.0))->capture_default_str();
  app.add_option("--top-p", options.top_p)->check(CLI::Range(0.0, 1.0))->capture_default_str();
  app.add_option("--seed", options.seed, "the same seed gives the same answer; below 0: a fresh one");
}

const std::vector<std::string> kIsas{"avx2", "avx512", "avx512-bf16"};

void add_bench_engine_flags(CLI::App& app, BenchEngineOptions& options) {
  app.add_option("--model", options.model, "a .gguf file or a folder; empty: the default model");
  app.add_option("--isa", options.isa, "instruction set; default: the best there is")->check(CLI::IsMember(kIsas));
  add_choice(app, "--kv-dtype", options.kv_dtype, kKvTypes, "type of keys and values; default: as serve chooses");
  app.add_option("--prompt", options.prompts, "lengths of the prompts to read; 0: no prefill tests")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--decode", options.decode_tokens, "tokens each sequence decodes; 0: no decode tests")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--depth", options.depths, "tokens the decoding sequences already have")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--sequences", options.sequences, "sequences decoding at once")->check(CLI::Range(1, 4096));
  app.add_option("--prefill-chunk-tokens", options.chunk_tokens, "most prompt tokens in one step")
      ->check(CLI::Range(1, 1 << 16));
  app.add_flag("--cold", options.cold, "leave out the uncounted first run of each test");
}

void add_bench_kernels_flags(CLI::App& app, BenchKernelsOptions& options) {
  app.add_option("--isa", options.isas, "instruction sets; default: all this processor has")
      ->check(CLI::IsMember(kIsas));
  app.add_option("--op", options.ops, "only these: linear, attention, rms_norm, rope, gate, kv_write, sample");
}

void add_bench_pool_flags(CLI::App& app, BenchPoolOptions& options) {
  app.add_option("--blocks", options.num_blocks, "blocks of the pool")->check(CLI::Range(1, 1 << 24));
  app.add_option("--lease", options.lease_blocks, "blocks of one lease")->check(CLI::Range(1, 1 << 16));
  app.add_option("--used", options.percent_used, "percent of the blocks that others hold")->check(CLI::Range(0, 100));
  app.add_option("--processes", options.processes, "processes at once: 1, 2")->check(CLI::Range(1, 2));
}

template <class Options>
void add_threads_flag(CLI::App& app, Options& options) {
  app.add_option("--threads", options.threads, "thread counts to run with; 0: all cores")->check(CLI::Range(0, 1024));
}

template <class Options>
void add_bench_flags(CLI::App& app, Options& options) {
  app.add_option("--repeat", options.repeat, "measured runs of each test")->check(CLI::Range(1, 1000));
  app.add_flag("--json", options.json, "JSON lines instead of a table");
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() > 1) option->delimiter(',');
    if (option->get_items_expected_max() > 0) option->capture_default_str();
  }
}

// Applies the flags or says what is wrong with them.
bool applied(ServerFlags& flags) {
  const absl::Status status = flags.apply();
  if (!status.ok())
    std::fprintf(stderr, "tandem: %.*s\n", static_cast<int>(message(status).size()), message(status).data());
  return status.ok();
}

int run(int argc, char** argv) {
  CLI::App app{"tandem: LLM inference with prefill and decode in separate workers over one KV pool"};
  app.set_version_flag("--version", std::string("tandem ") + TANDEM_VERSION);
  app.require_subcommand(1);

  CLI::App* serve = app.add_subcommand("serve", "serve a model over HTTP (OpenAI API) and gRPC");
  ServerFlags serve_flags(*serve, ServerFlags::Scope::kServer);
  CLI::App* generate = app.add_subcommand("generate", "print one streamed answer, without a server");
  GenerateOptions generate_options;
  add_generate_flags(*generate, generate_options);
  ServerFlags generate_flags(*generate, ServerFlags::Scope::kLocal);
  CLI::App* score = app.add_subcommand("score", "log-probabilities and greedy tokens of given texts");
  ScoreOptions score_options;
  score
      ->add_option(
          "--input", score_options.input,
          "JSON lines: {\"text\": \"...\"} or {\"token_ids\": [...]}, and \"greedy_tokens\": how many to generate")
      ->required();
  score
      ->add_option("--output", score_options.output,
                   "JSON lines, one for each: token_ids, mean_nll (natural log), top1_per_position, last_logits, "
                   "greedy_token_ids; or error")
      ->required();
  ServerFlags score_flags(*score, ServerFlags::Scope::kLocal);
  CLI::App* bench =
      app.add_subcommand("bench", "measure this machine: the engine, each kernel beside its limits, or the KV pool");
  bench->require_subcommand(1);
  CLI::App* bench_engine = bench->add_subcommand("engine", "tokens per second without a server");
  BenchEngineOptions bench_engine_options;
  add_bench_engine_flags(*bench_engine, bench_engine_options);
  add_threads_flag(*bench_engine, bench_engine_options);
  add_bench_flags(*bench_engine, bench_engine_options);
  CLI::App* bench_kernels = bench->add_subcommand("kernels", "every op beside the limits measured in the same run");
  BenchKernelsOptions bench_kernels_options;
  add_bench_kernels_flags(*bench_kernels, bench_kernels_options);
  add_threads_flag(*bench_kernels, bench_kernels_options);
  add_bench_flags(*bench_kernels, bench_kernels_options);
  CLI::App* bench_pool = bench->add_subcommand("pool", "nanoseconds to reserve and retire a KV block, beside a mutex");
  BenchPoolOptions bench_pool_options;
  add_bench_pool_flags(*bench_pool, bench_pool_options);
  add_bench_flags(*bench_pool, bench_pool_options);
  CLI::App* inspect = app.add_subcommand("inspect", "what an owner's memory holds: regions, KV blocks, lanes");
  InspectOptions inspect_options;
  inspect->add_option("--owner-socket", inspect_options.owner_socket, "where the owner listens: @name or a path")
      ->required();
  inspect->add_flag("--json", inspect_options.json, "JSON instead of tables");
  CLI::App* owner =
      app.add_subcommand("owner", "the memory owner process (serve starts one unless --owner-socket names it)");
  OwnerCommandOptions owner_options;
  owner->add_option("--socket", owner_options.socket, "where to listen: @name or a path")->required();
  add_process_flags(*owner, owner_options);
  CLI::App* worker = app.add_subcommand("worker", "a worker process (serve starts it)");
  WorkerCommandOptions worker_options;
  add_worker_flags(*worker, worker_options);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError& error) {
    std::string unknown;
    for (const CLI::App* part :
         {&app, serve, generate, score, bench, bench_engine, bench_kernels, bench_pool, inspect, owner, worker}) {
      if (!part->remaining().empty()) unknown = part->remaining().front();
    }
    std::fprintf(stderr, "tandem: unknown argument \"%s\"%s\nRun with --help for more information.\n", unknown.c_str(),
                 serve_flags.did_you_mean(unknown).c_str());
    return kUsageError;
  } catch (const CLI::ParseError& error) {
    if (error.get_name() == "RequiredError" && argc > 1 && app.get_subcommands().empty() && argv[1][0] != '-') {
      std::fprintf(
          stderr,
          "tandem: unknown command \"%s\"; the commands are serve, generate, score, bench, inspect, owner and worker\n",
          argv[1]);
      return kUsageError;
    }
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  if (serve->parsed()) return applied(serve_flags) ? serve_command(serve_flags.config()) : kUsageError;
  if (generate->parsed()) {
    if (generate_options.prompt.empty() == generate_options.messages_file.empty()) {
      std::fputs("tandem: generate needs --prompt or --messages, and not both\n", stderr);
      return kUsageError;
    }
    return applied(generate_flags) ? generate_command(generate_flags.config(), generate_options) : kUsageError;
  }
  if (score->parsed()) return applied(score_flags) ? score_command(score_flags.config(), score_options) : kUsageError;
  if (bench_engine->parsed()) return bench_engine_command(bench_engine_options);
  if (bench_kernels->parsed()) return bench_kernels_command(bench_kernels_options);
  if (inspect->parsed()) return inspect_command(inspect_options);
  if (bench_pool->parsed()) return bench_pool_command(bench_pool_options);
  if (owner->parsed()) return owner_command(owner_options);
  return worker_command(worker_options);
}

}  // namespace
}  // namespace tandem

// Nothing in tandem throws on purpose; what a library throws past its border (out of memory, no more threads) ends the
// command with a message.
int main(int argc, char** argv) try { return tandem::run(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "tandem: %s\n", error.what());
  return 1;
}

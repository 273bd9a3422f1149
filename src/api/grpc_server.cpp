#include "api/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "api/http_routes.h"
#include "api/placement.h"
#include "base/status.h"
#include "fmt/core.h"
#include "tandem/v1/inference.grpc.pb.h"

namespace tandem {
namespace {

constexpr std::size_t kMaxBacklogMessages = 4096;  // a client that does not read loses its call
constexpr std::uint32_t kMaxChoices = 128;
constexpr int kMaxStops = 16;
constexpr std::chrono::seconds kStopGrace{1};

grpc::Status to_grpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(message(status))};
}

bool authorized(const grpc::CallbackServerContext& context, const ApiKeys& keys) {
  if (!keys.required()) return true;
  const auto found = context.client_metadata().find("authorization");
  return found != context.client_metadata().end() && keys.match({found->second.data(), found->second.size()});
}

absl::Status check_range(const char* field, double value, double min, double max) {
  if (value >= min && value <= max) return absl::OkStatus();  // false for NaN
  return request_error(fmt::format("{} is {}; it must be from {} to {}", field, value, min, max), field);
}

absl::Status read_sampling(const v1::SamplingParams& from, SamplingParams& to) {
  if (from.has_temperature()) to.temperature = from.temperature();
  if (from.has_top_p()) to.top_p = from.top_p();
  if (from.has_top_k()) to.top_k = from.top_k() == -1 ? 0 : from.top_k();
  if (from.has_min_p()) to.min_p = from.min_p();
  if (from.has_repetition_penalty()) to.repetition_penalty = from.repetition_penalty();
  if (from.has_presence_penalty()) to.presence_penalty = from.presence_penalty();
  if (from.has_frequency_penalty()) to.frequency_penalty = from.frequency_penalty();
  if (from.has_seed()) to.seed = from.seed();
  TANDEM_TRY(check_range("sampling.temperature", to.temperature, 0, 2));
  TANDEM_TRY(check_range("sampling.top_p", to.top_p, 0, 1));
  TANDEM_TRY(check_range("sampling.top_k", to.top_k, 0, INT32_MAX));
  TANDEM_TRY(check_range("sampling.min_p", to.min_p, 0, 1));
  TANDEM_TRY(check_range("sampling.repetition_penalty", to.repetition_penalty, 0.01, 10));
  TANDEM_TRY(check_range("sampling.presence_penalty", to.presence_penalty, -2, 2));
  TANDEM_TRY(check_range("sampling.frequency_penalty", to.frequency_penalty, -2, 2));
  for (const auto& [token, bias] : from.logit_bias()) {
    TANDEM_TRY(check_range("sampling.logit_bias", bias, -100, 100));
    to.logit_bias.emplace_back(token, bias);
  }
  return absl::OkStatus();
}

absl::StatusOr<Prompt> read_prompt(const v1::GenerateRequest& from) {
  switch (from.prompt_case()) {
    case v1::GenerateRequest::kText: return Prompt(from.text());
    case v1::GenerateRequest::kTokenIds:
      return Prompt(std::vector<TokenId>(from.token_ids().ids().begin(), from.token_ids().ids().end()));
    case v1::GenerateRequest::kChat: break;
    default: return request_error("one of text, token_ids and chat is needed", "prompt");
  }
  if (from.chat().messages().empty()) return request_error("chat.messages is empty", "chat.messages");
  ChatPrompt chat;
  for (const v1::ChatMessage& message : from.chat().messages()) {
    static constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool", "developer"};
    if (std::ranges::find(kRoles, message.role()) == std::end(kRoles)) {
      return request_error("a role is system, user, assistant, tool or developer", "chat.messages.role");
    }
    ChatMessage& added = chat.messages.emplace_back();
    added.role = message.role();
    added.content = message.content();
    if (message.has_name()) added.name = message.name();
    if (message.has_tool_call_id()) added.tool_call_id = message.tool_call_id();
  }
  return Prompt(std::move(chat));
}

absl::StatusOr<Request> read_request(const v1::GenerateRequest& from, const Engine& engine) {
  if (!from.model().empty() && from.model() != engine.model().id) {
    return absl::NotFoundError(fmt::format("this server has the model {}", engine.model().id));
  }
  Request request;
  request.id = from.request_id();
  TANDEM_ASSIGN(request.prompt, read_prompt(from));
  TANDEM_TRY(read_sampling(from.sampling(), request.sampling));
  if (from.has_max_tokens()) {
    if (from.max_tokens() == 0) return request_error("max_tokens is 0; it must be at least 1", "max_tokens");
    request.stopping.max_tokens = from.max_tokens();
  }
  request.stopping.min_tokens = from.min_tokens();
  if (from.stop_size() > kMaxStops) return request_error(fmt::format("at most {} stop strings", kMaxStops), "stop");
  for (const std::string& stop : from.stop()) {
    if (!stop.empty()) request.stopping.stop.push_back(stop);
  }
  request.stopping.stop_token_ids.assign(from.stop_token_ids().begin(), from.stop_token_ids().end());
  request.stopping.ignore_eos = from.ignore_eos();
  request.num_choices = std::max(from.num_choices(), 1U);
  TANDEM_TRY(check_range("num_choices", request.num_choices, 1, kMaxChoices));
  if (from.has_top_logprobs()) {
    TANDEM_TRY(check_range("top_logprobs", from.top_logprobs(), 0, kMaxTopLogprobs));
    request.top_logprobs = from.top_logprobs();
  }
  if (from.has_ttft_ms()) request.slo.ttft_ms = from.ttft_ms();
  if (from.has_tpot_ms()) request.slo.tpot_ms = from.tpot_ms();
  request.priority = from.priority();
  request.cache_salt = from.cache_salt();
  request.use_prefix_cache = !from.skip_prefix_cache();
  return request;
}

void write_token(const TokenInfo& from, bool with_logprob, v1::Token& to) {
  to.set_id(from.id);
  to.set_bytes(from.bytes);
  if (!with_logprob) return;
  to.set_logprob(from.logprob);
  for (const TokenInfo::Alternative& top : from.top) {
    v1::Alternative& added = *to.add_top();
    added.set_id(top.id);
    added.set_bytes(top.bytes);
    added.set_logprob(top.logprob);
  }
}

// One Generate call. Shared by gRPC, until OnDone, and by the engine's sink, until the last event.
class GenerateCall final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  static GenerateCall* start(Engine& engine, const v1::GenerateRequest& request, bool authorized) {
    auto call = std::make_shared<GenerateCall>(engine);
    call->self_ = call;
    call->begin(request, authorized);
    return call.get();
  }
  explicit GenerateCall(Engine& engine) : engine_(engine) {}

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    backlog_.pop_front();
    if (!ok) backlog_.clear();  // the client is gone; OnCancel follows
    advance();
  }

  void OnCancel() override {
    std::optional<RequestId> id;
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
      id = id_;
    }
    if (id) engine_.cancel(*id);
  }

  void OnDone() override { self_.reset(); }

 private:
  void begin(const v1::GenerateRequest& from, bool authorized) {
    if (!authorized)
      return end(absl::UnauthenticatedError("a valid API key is needed: metadata authorization: Bearer KEY"));
    absl::StatusOr<Request> request = read_request(from, engine_);
    if (!request.ok()) return end(request.status());
    with_logprobs_ = request->top_logprobs.has_value();
    const auto id = engine_.submit(*std::move(request), [call = self_](const Event& event) { call->handle(event); });
    if (!id.ok()) return end(id.status());
    bool cancelled = false;
    {
      const std::lock_guard lock(mutex_);
      id_ = *id;
      cancelled = cancelled_;
    }
    if (cancelled) engine_.cancel(*id);
  }

  void end(absl::Status status) {
    const std::lock_guard lock(mutex_);
    result_ = std::move(status);
    advance();
  }

  void handle(const Event& event) {
    v1::GenerateResponse response;
    if (const auto* text = std::get_if<TextEvent>(&event)) {
      response.set_choice(text->choice);
      response.set_text(text->text);
      for (const TokenInfo& token : text->tokens) write_token(token, with_logprobs_, *response.add_tokens());
    } else if (const auto* finish = std::get_if<FinishEvent>(&event)) {
      response.set_choice(finish->choice);
      v1::Finish& to = *response.mutable_finish();
      to.set_reason(finish->reason == FinishReason::kLength ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_STOP);
      if (finish->matched_stop) to.set_matched_stop(*finish->matched_stop);
      if (finish->matched_stop_token) to.set_matched_stop_token(*finish->matched_stop_token);
    } else if (const auto* done = std::get_if<DoneEvent>(&event)) {
      if (!done->status.ok()) return end(done->status);
      response.mutable_usage()->set_prompt_tokens(done->usage.prompt_tokens);
      response.mutable_usage()->set_completion_tokens(done->usage.completion_tokens);
      response.mutable_usage()->set_cached_tokens(done->usage.cached_tokens);
      push(std::move(response));
      return end(absl::OkStatus());
    } else {
      return;
    }
    push(std::move(response));
  }

  void push(v1::GenerateResponse response) {
    std::optional<RequestId> overrun;
    {
      const std::lock_guard lock(mutex_);
      if (finished_ || cancelled_) return;
      if (backlog_.size() >= kMaxBacklogMessages) overrun = id_;
      backlog_.push_back(std::move(response));
      advance();
    }
    if (overrun) engine_.cancel(*overrun);
  }

  // Starts the next write, or ends the call when nothing is left to write. Under the mutex.
  void advance() {
    if (writing_ || finished_) return;
    if (!backlog_.empty()) {
      writing_ = true;
      StartWrite(&backlog_.front());
    } else if (result_) {
      finished_ = true;
      Finish(to_grpc(*result_));
    }
  }

  Engine& engine_;
  std::shared_ptr<GenerateCall> self_;
  std::mutex mutex_;
  std::deque<v1::GenerateResponse> backlog_;  // the front one is being written
  std::optional<absl::Status> result_;
  std::optional<RequestId> id_;
  bool writing_ = false;
  bool finished_ = false;
  bool cancelled_ = false;
  bool with_logprobs_ = false;
};

class InferenceService final : public v1::Inference::CallbackService {
 public:
  InferenceService(Engine& engine, const std::vector<std::string>& keys) : engine_(engine), keys_(keys) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* request) override {
    return GenerateCall::start(engine_, *request, authorized(*context, keys_));
  }

  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context, const v1::GetModelInfoRequest*,
                                         v1::GetModelInfoResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!authorized(*context, keys_)) {
      reactor->Finish({grpc::StatusCode::UNAUTHENTICATED, "a valid API key is needed"});
      return reactor;
    }
    response->set_id(engine_.model().id);
    response->set_context_length(engine_.model().context_length);
    response->set_vocab_size(engine_.tokenizer().vocab_size());
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  Engine& engine_;
  const ApiKeys keys_;
};

void write_placement(const PlacementState& from, v1::PlacementState& to) {
  to.set_placement(from.placement == Placement::kSemi ? v1::PLACEMENT_SEMI : v1::PLACEMENT_FUSED);
  to.set_num_units(from.num_units);
  to.set_decode_units(from.decode_units);
  for (const LaneReport& lane : from.lanes) {
    v1::LaneState& added = *to.add_lanes();
    added.set_name(lane.name);
    added.set_up(lane.up);
    added.set_epoch(lane.epoch);
    added.set_restarts(lane.restarts);
  }
}

class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(Engine& engine, const std::vector<std::string>& keys) : engine_(engine), keys_(keys) {}

  grpc::ServerUnaryReactor* GetPlacement(grpc::CallbackServerContext* context, const v1::GetPlacementRequest*,
                                         v1::PlacementState* response) override {
    if (!authorized(*context, keys_)) return refuse(*context);
    write_placement(engine_.placement(), *response);
    return finish(*context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* SetPlacement(grpc::CallbackServerContext* context, const v1::SetPlacementRequest* request,
                                         v1::PlacementState* response) override {
    if (!authorized(*context, keys_)) return refuse(*context);
    std::optional<std::int64_t> decode_units;
    if (request->has_decode_units()) decode_units = request->decode_units();
    const auto change = make_placement_change(decode_units, {request->replace().begin(), request->replace().end()},
                                              engine_.placement());
    if (!change.ok()) return finish(*context, change.status());
    // The response lives until Finish.
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    engine_.set_placement(*change, [this, reactor, response](const absl::Status& status) {
      if (status.ok()) write_placement(engine_.placement(), *response);
      reactor->Finish(to_grpc(status));
    });
    return reactor;
  }

 private:
  static grpc::ServerUnaryReactor* finish(grpc::CallbackServerContext& context, const absl::Status& status) {
    grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
    reactor->Finish(to_grpc(status));
    return reactor;
  }
  static grpc::ServerUnaryReactor* refuse(grpc::CallbackServerContext& context) {
    return finish(context, absl::UnauthenticatedError("a valid administrator's API key is needed"));
  }

  Engine& engine_;
  const ApiKeys keys_;
};

}  // namespace

struct GrpcServer::Impl {
  Impl(Engine& engine, const GrpcOptions& options)
      : service(engine, options.api_keys),
        admin(engine, options.admin_api_key.empty() ? options.api_keys : std::vector{options.admin_api_key}) {}
  InferenceService service;
  AdminService admin;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  bool stopped = false;
};

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrpcServer::~GrpcServer() { stop(); }

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::create(const GrpcOptions& options, Engine& engine) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  auto impl = std::make_unique<Impl>(engine, options);
  const bool is_v6 = options.host.find(':') != std::string::npos;
  const std::string address = fmt::format("{}:{}", is_v6 ? "[" + options.host + "]" : options.host, options.port);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &impl->port);
  builder.RegisterService(&impl->service);
  builder.RegisterService(&impl->admin);
  builder.SetMaxReceiveMessageSize(static_cast<int>(std::min<std::uint64_t>(options.max_message_bytes, INT32_MAX)));
  // Two servers on one port would share its clients at random; and patient clients that ping are welcome.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port == 0) {
    return absl::UnavailableError(fmt::format("cannot listen for gRPC on {}; is the port in use?", address));
  }
  impl->server->GetHealthCheckService()->SetServingStatus(v1::Inference::service_full_name(), true);
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

std::uint16_t GrpcServer::port() const { return static_cast<std::uint16_t>(impl_->port); }

void GrpcServer::stop_accepting() { impl_->server->GetHealthCheckService()->SetServingStatus(false); }

void GrpcServer::stop() {
  if (std::exchange(impl_->stopped, true)) return;
  impl_->server->Shutdown(std::chrono::system_clock::now() + kStopGrace);
  impl_->server->Wait();
}

}  // namespace tandem

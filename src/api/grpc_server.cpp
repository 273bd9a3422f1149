#include "api/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "api/api_keys.h"
#include "api/grpc_request.h"
#include "api/placement.h"
#include "api/request_error.h"
#include "fmt/format.h"
#include "tandem/v1/inference.grpc.pb.h"

namespace tandem {
namespace {

constexpr std::size_t kMaxBacklogMessages = 4096;  // a client that does not read loses its call
constexpr std::chrono::seconds kStopGrace{1};

grpc::Status to_grpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(message(status))};
}

std::optional<Caller> caller_of(const grpc::CallbackServerContext& context, const ApiKeys& keys) {
  const auto found = context.client_metadata().find("authorization");
  if (found == context.client_metadata().end()) return keys.caller({});
  return keys.caller({found->second.data(), found->second.size()});
}

// The methods take bytes: what grpc++ cannot decode itself it would answer with INTERNAL, and it is the client's fault.
template <class Message>
absl::StatusOr<Message> decode(const grpc::ByteBuffer& bytes) {
  Message message;
  grpc::ByteBuffer consumed = bytes;  // shares the bytes
  if (grpc::SerializationTraits<Message>::Deserialize(&consumed, &message).ok()) return message;
  return request_error(
      fmt::format("the message cannot be decoded as {}; is it of this version, and are its strings UTF-8?",
                  Message::descriptor()->full_name()));
}

template <class Message>
grpc::ByteBuffer encode(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer = false;
  const grpc::Status status = grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own_buffer);
  TANDEM_CHECK(status.ok(), "a message of ours can be encoded");
  return bytes;
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
class GenerateCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  static GenerateCall* start(Engine& engine, grpc::CallbackServerContext& context, const grpc::ByteBuffer& request,
                             const std::optional<Caller>& caller) {
    auto call = std::make_shared<GenerateCall>(engine);
    call->self_ = call;
    if (absl::Status status = call->begin(context, request, caller); !status.ok()) call->end(std::move(status));
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
  absl::Status begin(grpc::CallbackServerContext& context, const grpc::ByteBuffer& bytes,
                     const std::optional<Caller>& caller) {
    if (!caller) return absl::UnauthenticatedError("a valid API key is needed: metadata authorization: Bearer KEY");
    TANDEM_ASSIGN(const auto from, decode<v1::GenerateRequest>(bytes));
    TANDEM_ASSIGN(Request request, read_request(from, engine_.model()));
    if (const auto lowered = attribute(*caller, request)) {
      context.AddInitialMetadata("x-tandem-priority", fmt::to_string(*lowered));
    }
    with_logprobs_ = request.top_logprobs.has_value();
    const auto id = engine_.submit(std::move(request), [call = self_](const Event& event) { call->handle(event); });
    if (!id.ok()) return in_grpc_names(id.status(), from);
    bool cancelled = false;
    {
      const std::lock_guard lock(mutex_);
      id_ = *id;
      cancelled = cancelled_;
    }
    if (cancelled) engine_.cancel(*id);
    return absl::OkStatus();
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
      push(response);
      return end(absl::OkStatus());
    } else {
      return;
    }
    push(response);
  }

  void push(const v1::GenerateResponse& response) {
    grpc::ByteBuffer bytes = encode(response);
    std::optional<RequestId> overrun;
    {
      const std::lock_guard lock(mutex_);
      if (finished_ || cancelled_) return;
      if (backlog_.size() >= kMaxBacklogMessages) overrun = id_;
      backlog_.push_back(std::move(bytes));
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
  std::deque<grpc::ByteBuffer> backlog_;  // the front one is being written
  std::optional<absl::Status> result_;
  std::optional<RequestId> id_;
  bool writing_ = false;
  bool finished_ = false;
  bool cancelled_ = false;
  bool with_logprobs_ = false;
};

// For calls that are answered at once.
grpc::ServerUnaryReactor* finish(grpc::CallbackServerContext& context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(to_grpc(status));
  return reactor;
}

using RawInference = v1::Inference::WithRawCallbackMethod_Generate<
    v1::Inference::WithRawCallbackMethod_GetModelInfo<v1::Inference::Service>>;

class InferenceService final : public RawInference {
 public:
  InferenceService(Engine& engine, ApiKeys keys) : engine_(engine), keys_(std::move(keys)) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override {
    return GenerateCall::start(engine_, *context, *request, caller_of(*context, keys_));
  }

  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    return finish(*context, get_model_info(*context, *request, *response));
  }

 private:
  absl::Status get_model_info(const grpc::CallbackServerContext& context, const grpc::ByteBuffer& request,
                              grpc::ByteBuffer& response) const {
    if (!caller_of(context, keys_)) return absl::UnauthenticatedError("a valid API key is needed");
    TANDEM_TRY(decode<v1::GetModelInfoRequest>(request).status());
    v1::GetModelInfoResponse info;
    info.set_id(engine_.model().id);
    info.set_context_length(engine_.model().context_length);
    info.set_vocab_size(engine_.tokenizer().vocab_size());
    response = encode(info);
    return absl::OkStatus();
  }

  Engine& engine_;
  const ApiKeys keys_;
};

grpc::ByteBuffer encode_placement(const PlacementState& from) {
  v1::PlacementState to;
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
  return encode(to);
}

using RawAdmin =
    v1::Admin::WithRawCallbackMethod_GetPlacement<v1::Admin::WithRawCallbackMethod_SetPlacement<v1::Admin::Service>>;

class AdminService final : public RawAdmin {
 public:
  AdminService(Engine& engine, ApiKeys keys) : engine_(engine), keys_(std::move(keys)) {}

  grpc::ServerUnaryReactor* GetPlacement(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    absl::Status status = check_caller(*context);
    if (status.ok()) status = decode<v1::GetPlacementRequest>(*request).status();
    if (status.ok()) *response = encode_placement(engine_.placement());
    return finish(*context, status);
  }

  grpc::ServerUnaryReactor* SetPlacement(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    const absl::StatusOr<PlacementChange> change = read_change(*context, *request);
    if (!change.ok()) return finish(*context, change.status());
    // The response lives until Finish.
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    engine_.set_placement(*change, [this, reactor, response](const absl::Status& status) {
      if (status.ok()) *response = encode_placement(engine_.placement());
      reactor->Finish(to_grpc(status));
    });
    return reactor;
  }

 private:
  absl::Status check_caller(const grpc::CallbackServerContext& context) const {
    if (caller_of(context, keys_)) return absl::OkStatus();
    return absl::UnauthenticatedError("a valid administrator's API key is needed");
  }
  absl::StatusOr<PlacementChange> read_change(const grpc::CallbackServerContext& context,
                                              const grpc::ByteBuffer& bytes) const {
    TANDEM_TRY(check_caller(context));
    TANDEM_ASSIGN(const auto request, decode<v1::SetPlacementRequest>(bytes));
    std::optional<std::int64_t> decode_units;
    if (request.has_decode_units()) decode_units = request.decode_units();
    return make_placement_change(decode_units, {request.replace().begin(), request.replace().end()},
                                 engine_.placement());
  }

  Engine& engine_;
  const ApiKeys keys_;
};

}  // namespace

struct GrpcServer::Impl {
  Impl(Engine& engine, const GrpcOptions& options)
      : service(engine, ApiKeys(options.api_keys, options.max_priority)),
        admin(engine,
              ApiKeys(options.admin_api_key.empty() ? options.api_keys : std::vector{ApiKey{options.admin_api_key}})) {}
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

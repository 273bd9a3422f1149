#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

#include "api/http_connection.h"
#include "api/openai.h"
#include "api/placement.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"

namespace tandem {
namespace {

// Longer bodies are parsed and tokenised off the loop's thread, so that /health answers meanwhile.
constexpr std::size_t kInlineBodyBytes = 16 << 10;

bool takes_json(std::string_view method, Route route) {
  return method == "POST" && (route == Route::kChat || route == Route::kCompletion || route == Route::kTokenize ||
                              route == Route::kDetokenize || route == Route::kPlacement);
}

// Values of headers that come from outside must not begin a new line.
void append_header(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  for (const char c : value) out.push_back(c == '\r' || c == '\n' || c == '\0' ? ' ' : c);
  out.append("\r\n");
}

absl::StatusOr<SloTargets> slo_targets(const HttpHead& head) {
  SloTargets slo;
  if (!head.slo_ttft_ms.empty()) {
    TANDEM_ASSIGN(slo.ttft_ms, parse_milliseconds(head.slo_ttft_ms, "x-slo-ttft-ms"));
  }
  if (!head.slo_tpot_ms.empty()) {
    TANDEM_ASSIGN(slo.tpot_ms, parse_milliseconds(head.slo_tpot_ms, "x-slo-tpot-ms"));
  }
  return slo;
}

// Touches the call, the engine and its own arguments only.
void parse_and_submit(EngineCall& call, Route route, const std::string& body, const CallContext& context,
                      Counter refused) {
  if (route == Route::kTokenize || route == Route::kDetokenize) {
    auto json = route == Route::kTokenize ? tokenize(body, context) : detokenize(body, context);
    json.ok() ? call.push(EngineCall::BodyItem{.json = *std::move(json)}) : call.push(json.status());
    return;
  }
  if (route == Route::kPlacement) return call.set_placement(body);
  auto parsed = route == Route::kChat ? parse_chat_call(body, context) : parse_completion_call(body, context);
  if (parsed.ok()) return call.submit(*std::move(parsed));
  refused.add();
  call.push(parsed.status());
}

// Runs on the loop or on the pool, where an exception would end the process.
void run_call(EngineCall& call, Route route, const std::string& body, const CallContext& context, Counter refused) {
  if (call.closed()) return;
  try {
    parse_and_submit(call, route, body, context, refused);
  } catch (const std::exception& e) {
    TANDEM_LOG(kError, "http: request {} failed: {}", context.request_id, e.what());
    call.push(absl::InternalError("the server could not handle the request; send it again or report it"));
  }
}

}  // namespace

// Everything that can be refused from the head alone.
std::optional<HttpReply> Connection::refusal() {
  const HttpHead& head = parser_.head();
  match_ = match_route(head.method, head.target);
  if (admission_ == Admission::kProbe) {
    must_close_ = true;
    if (match_.key != KeyNeed::kNone) {
      shared_.refused_connections.add();
      return error_reply(503,
                         fmt::format("All {} connections of this server are in use. Send the request again later.",
                                     shared_.options.max_connections),
                         "overloaded");
    }
  }
  const bool is_options = head.method == "OPTIONS";
  tenant_.clear();
  const bool wants_admin = match_.key == KeyNeed::kAdmin && shared_.admin_keys.required();
  const ApiKeys& keys = wants_admin ? shared_.admin_keys : shared_.keys;
  if (keys.required() && match_.key != KeyNeed::kNone && !is_options) {
    const std::optional<std::size_t> key = keys.match(head.authorization);
    if (!key) {
      return error_reply(401, head.authorization.empty()
                                  ? "No API key was given. Send it as 'Authorization: Bearer KEY'."
                                  : "The API key is not valid. Send it as 'Authorization: Bearer KEY'.");
    }
    tenant_ = fmt::format("key{}", *key);
  }
  if (match_.route == Route::kUnknown && !is_options) {
    return error_reply(404, fmt::format("There is no route {} {}.", head.method, head.target.substr(0, 200)));
  }
  if (!match_.method_allowed && match_.route != Route::kUnknown) {
    HttpReply reply =
        error_reply(405, fmt::format("The method {} is not allowed here; use {}.", head.method, match_.allow));
    reply.headers.emplace_back("Allow", match_.allow);
    return reply;
  }
  if (head.unknown_expectation) return error_reply(417, "The only Expect value that is known is '100-continue'.");
  if (takes_json(head.method, match_.route)) {
    if (!is_json_content_type(head.content_type))
      return error_reply(415, "The body must be JSON: send 'Content-Type: application/json'.");
    if (!head.content_encoding.empty() && head.content_encoding != "identity") {
      return error_reply(415, "Compressed bodies are not accepted; send the body without a Content-Encoding.");
    }
  }
  if (head.content_length > shared_.options.max_body_bytes) {
    return error_reply(413, fmt::format("The request's body has {} bytes; the limit is {}.", head.content_length,
                                        shared_.options.max_body_bytes));
  }
  return std::nullopt;
}

void Connection::dispatch() {
  const HttpHead& head = parser_.head();
  if (head.method == "OPTIONS") {
    HttpReply reply{.status = 204, .content_type = {}, .body = {}, .headers = {}};
    reply.headers.emplace_back("Allow", match_.allow.empty() ? "GET, HEAD, POST, OPTIONS" : match_.allow);
    add_preflight_headers(shared_.options.cors_allow_origins,
                          {.origin = head.origin, .requested_headers = head.requested_headers}, reply);
    return send(std::move(reply));
  }
  takes_json(head.method, match_.route) ? start_call() : send(plain_reply());
}

// Of the routes that need no call on the engine's side.
HttpReply Connection::plain_reply() {
  Engine& engine = shared_.engine;
  HttpReply reply;
  switch (match_.route) {
    case Route::kModels: reply.body = models_json(engine.model()); break;
    case Route::kModel:
      if (match_.model_id != engine.model().id) {
        return error_reply(request_error(fmt::format("The model '{}' does not exist.", match_.model_id.substr(0, 200)),
                                         "model", "model_not_found", absl::StatusCode::kNotFound));
      }
      reply.body = model_json(engine.model());
      break;
    case Route::kMetrics:
      reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
      reply.body = engine.metrics();
      break;
    case Route::kFlushCache:
      engine.flush_prefix_cache();
      reply.body = R"({"success":true,"message":"the prefix cache is empty"})";
      break;
    case Route::kPlacement: reply.body = placement_json(engine.placement()); break;
    case Route::kVersion: reply.body = fmt::format(R"({{"version":"{}"}})", shared_.options.version); break;
    default: {  // kHealth, kReady
      const EngineState state = engine.state();
      if (shared_.draining.load()) return error_reply(503, "draining: the server is shutting down");
      if (!state.alive) return error_reply(503, state.reason.empty() ? "the engine does not answer" : state.reason);
      if (match_.route == Route::kReady && !state.ready)
        return error_reply(503, state.reason.empty() ? "not ready" : state.reason);
      reply.body = R"({"status":"ok"})";
    }
  }
  return reply;
}

// ---- calls

void Connection::start_call() {
  const HttpHead& head = parser_.head();
  auto slo = slo_targets(head);
  if (!slo.ok()) return send(error_reply(slo.status()));
  enter(State::kCall);
  // The wake-up runs only while the call is open, and close() comes before the loop ends: `loop` is alive then.
  call_ = std::make_shared<EngineCall>(shared_.engine, [&loop = loop_, weak = weak_from_this()] {
    asio::post(loop.io(), [weak] {
      if (const auto self = weak.lock()) self->on_wake();
    });
  });
  // The share goes with the bytes. shared_ptr: std::function copies what it holds; the job is the one owner.
  auto share = std::make_shared<std::optional<ByteShare>>(std::move(pending_));
  pending_.reset();
  auto job = [call = call_, route = match_.route, body = parser_.take_body(), share = std::move(share),
              &shared = shared_, id = request_id_, tenant = tenant_, targets = *slo] {
    const Engine& engine = shared.engine;
    run_call(
        *call, route, body,
        {.model = engine.model(), .tokenizer = engine.tokenizer(), .request_id = id, .tenant = tenant, .slo = targets},
        shared.requests.refused);
    share->reset();
  };
  arm_read();
  const bool is_short = head.content_length <= kInlineBodyBytes && !head.chunked;
  is_short ? job() : shared_.run_job(std::move(job));
}

void Connection::on_wake() {
  if (state_ != State::kCall || !call_) return;
  for (EngineCall::Item& item : call_->take()) {
    on_item(std::move(item));
    if (state_ != State::kCall) return;
  }
  if (reply_) step_call();
}

void Connection::on_item(EngineCall::Item item) {
  if (auto* call = std::get_if<ApiCall>(&item)) {
    reply_.emplace(std::move(*call), shared_.engine.model(), shared_.engine.tokenizer());
  } else if (auto* event = std::get_if<EngineCall::PromptItem>(&item)) {
    if (reply_) reply_->on_event(event->prompt_idx, event->event);
  } else if (auto* body = std::get_if<EngineCall::BodyItem>(&item)) {
    end_call();
    HttpReply reply;
    reply.body = std::move(body->json);
    send(std::move(reply));
  } else if (auto* status = std::get_if<absl::Status>(&item)) {
    if (reply_) return reply_->fail(*status);
    end_call();
    send(error_reply(*status));
  }
}

void Connection::step_call() {
  if (reply_->streaming() && (head_sent_ || reply_->status().ok())) return step_stream();
  HttpReply reply;
  if (!reply_->status().ok()) {
    reply = error_reply(reply_->status());
  } else if (reply_->done()) {
    reply.body = reply_->body();
  } else {
    return;
  }
  end_call();
  send(std::move(reply));
}

void Connection::step_stream() {
  if (!head_sent_ && !reply_->started()) return;
  // Checked before anything is added: one large event may pass the limit, an unread pile of them may not.
  if (out_.size() + writing_.size() - (writing_.empty() ? 0 : written_) > shared_.options.max_stream_backlog_bytes)
    return close();
  if (!head_sent_) send_stream_head();
  std::string events = reply_->take_events();
  const bool failed = !reply_->status().ok();
  if (failed) events += reply_->error_event();
  append_chunk(events);
  if (failed || reply_->done()) {
    must_close_ = must_close_ || failed;
    if (parser_.head().is_http_1_1) out_ += "0\r\n\r\n";
    end_call();
    enter(State::kReply);
  }
  flush();
}

// So that a proxy with a limit on silence does not cut a stream whose first token, or next one, takes long.
void Connection::comment(SteadyClock::time_point now) {
  const bool streams = state_ == State::kCall && head_sent_ && reply_ && reply_->streaming();
  if (!streams || now - last_sent_ < shared_.options.stream_comment_after) return;
  append_chunk(": keep-alive\n\n");
  flush();
}

void Connection::end_call() {
  if (call_) std::exchange(call_, nullptr)->close();
  reply_.reset();
}

// ---- replies

bool Connection::keeps_alive() const {
  // A half-closed client may have sent more requests before it closed its side.
  const bool can_ask_again = !half_closed_ || has_more_input_ || !input_.empty();
  return parser_.head().keep_alive && can_ask_again && !must_close_ && !shared_.draining.load();
}

std::string Connection::head_text(const HttpReply& reply, bool with_length) {
  const HttpHead& head = parser_.head();
  HttpReply extra;
  add_cors_headers(shared_.options.cors_allow_origins, {.origin = head.origin, .requested_headers = {}}, extra);
  must_close_ = !keeps_alive();
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", reply.status, reason_phrase(reply.status));
  if (!reply.content_type.empty()) append_header(out, "Content-Type", reply.content_type);
  if (with_length && reply.status != 204) append_header(out, "Content-Length", fmt::to_string(reply.body.size()));
  if (request_id_.empty()) request_id_ = request_id({});
  append_header(out, "X-Request-Id", request_id_);
  for (const auto& [name, value] : reply.headers) append_header(out, name, value);
  for (const auto& [name, value] : extra.headers) append_header(out, name, value);
  append_header(out, "Connection", must_close_ ? "close" : "keep-alive");
  out += "\r\n";
  shared_.count(reply.status);
  return out;
}

void Connection::send(HttpReply reply) {
  out_ += head_text(reply, true);
  if (parser_.head().method != "HEAD") out_ += reply.body;
  head_sent_ = true;
  enter(State::kReply);
  flush();
}

void Connection::send_stream_head() {
  HttpReply head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers.emplace_back("Cache-Control", "no-cache");
  head.headers.emplace_back("X-Accel-Buffering", "no");
  if (parser_.head().is_http_1_1) {
    head.headers.emplace_back("Transfer-Encoding", "chunked");
  } else {
    must_close_ = true;  // the end of the connection ends the stream
  }
  out_ += head_text(head, false);
  head_sent_ = true;
  last_sent_ = SteadyClock::now();
}

void Connection::append_chunk(std::string_view data) {
  if (data.empty()) return;
  last_sent_ = SteadyClock::now();
  if (!parser_.head().is_http_1_1) {
    out_.append(data);
    return;
  }
  out_ += fmt::format("{:x}\r\n", data.size());
  out_.append(data).append("\r\n");
}

}  // namespace tandem

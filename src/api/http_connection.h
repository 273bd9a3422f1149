// One client connection. Lives on its loop's thread; input and life: http_connection.cpp; requests and replies:
// http_dispatch.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "api/engine_call.h"
#include "api/http_loop.h"
#include "api/http_parser.h"
#include "api/http_routes.h"
#include "api/openai_response.h"

namespace tandem {

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(IoLoop& loop, HttpShared& shared, Socket socket, Admission admission);

  void start();
  void tick(SteadyClock::time_point now);
  // The server stops: a running call ends with 503, everything else closes.
  void shut_down();
  void close();
  Admission admission() const { return admission_; }
  SteadyClock::time_point entered() const { return entered_; }  // its present state

 private:
  enum class State : std::uint8_t {
    kHead,     // reads a request's head, or waits for one
    kBody,
    kCall,     // the engine works on the request
    kReply,    // the rest of a reply is being written
    kLinger,   // reads and drops, so that a reply sent before the end of a request is not lost to a reset
    kClosed,
  };

  // ---- input and life (http_connection.cpp)
  void enter(State state);
  void arm_read();
  void on_readable();
  void read_input();
  void look_at_peer();
  void on_half_close();
  void poll_peer();
  void advance();
  void on_head();
  void on_parse_failure();
  bool count_pending();
  void comment(SteadyClock::time_point now);
  void flush();
  void on_written(std::size_t n);
  void on_flushed();
  void next_request();
  void linger();

  // ---- requests and replies (http_dispatch.cpp)
  std::optional<HttpReply> refusal();
  void dispatch();
  HttpReply plain_reply();
  void start_call();
  void on_wake();
  void on_item(EngineCall::Item item);
  void step_call();
  void step_stream();
  void end_call();
  void send(HttpReply reply);
  void send_stream_head();
  void append_chunk(std::string_view data);
  std::string head_text(const HttpReply& reply, bool with_length);
  bool keeps_alive() const;

  IoLoop& loop_;
  HttpShared& shared_;
  Socket socket_;
  const Admission admission_;
  HttpParser parser_;
  InputBuffer input_;
  State state_ = State::kHead;
  SteadyClock::time_point entered_;        // the state
  SteadyClock::time_point last_progress_;  // a byte read in kBody, written in kCall and kReply
  SteadyClock::time_point last_sent_;      // something was added to a stream
  bool read_armed_ = false;
  bool has_more_input_ = false;  // pipelined bytes wait in the socket
  bool half_closed_ = false;
  std::size_t lingered_bytes_ = 0;

  // The current request.
  RouteMatch match_;
  std::string request_id_;
  std::string tenant_;
  std::optional<HttpReply> refusal_;  // decided at the head, sent after the body was dropped
  std::optional<ByteShare> pending_;  // of its bytes, until they are parsed
  bool must_close_ = false;
  bool head_sent_ = false;

  // shared_ptr: see api/engine_call.h
  std::shared_ptr<EngineCall> call_;
  std::optional<ApiReply> reply_;

  std::string out_;      // to be written next
  std::string writing_;  // the kernel has [0, written_) of it
  std::size_t written_ = 0;
  bool write_armed_ = false;
};

}  // namespace tandem

#include "api/http_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "fmt/format.h"

namespace tandem {
namespace {

using ErrorCode = boost::system::error_code;

constexpr std::chrono::milliseconds kLingerTime{1000};
constexpr std::chrono::milliseconds kProbeTime{5000};  // for a connection beyond the limit to ask
constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::size_t kMaxReadsPerWake = 16;  // then other connections get their turn
constexpr std::uint64_t kMaxDroppedBodyBytes =
    64 << 10;  // a refused request's body that is read for the connection's sake
constexpr std::size_t kMaxLingerBytes = 4 << 20;

}  // namespace

// ---- life

Connection::Connection(IoLoop& loop, HttpShared& shared, Socket socket, Admission admission)
    : loop_(loop),
      shared_(shared),
      socket_(std::move(socket)),
      admission_(admission),
      parser_(shared.options.max_header_bytes) {
  shared_.connections(admission_).fetch_add(1);
  shared_.open_connections.add(1);
}

void Connection::start() {
  ErrorCode ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  // A bounded kernel buffer: what a slow reader leaves unread shows up in our own, counted backlog.
  socket_.set_option(asio::socket_base::send_buffer_size(256 << 10), ignored);
  enter(State::kHead);
  arm_read();
}

void Connection::enter(State state) {
  state_ = state;
  entered_ = last_progress_ = SteadyClock::now();
  state == State::kHead ? loop_.begin_waiting(*this) : loop_.end_waiting(*this);
}

void Connection::close() {
  if (state_ == State::kClosed) return;
  enter(State::kClosed);
  if (call_) std::exchange(call_, nullptr)->close();
  ErrorCode ignored;
  socket_.close(ignored);
  pending_.reset();
  shared_.connections(admission_).fetch_sub(1);
  shared_.open_connections.add(-1);
  loop_.remove(*this);
}

void Connection::shut_down() {
  must_close_ = true;
  if (state_ == State::kCall) {
    if (call_) call_->push(absl::UnavailableError("the server is shutting down; send the request again"));
  } else if (state_ != State::kReply) {
    close();
  }
}

void Connection::tick(SteadyClock::time_point now) {
  const HttpOptions& options = shared_.options;
  const auto in_state = now - entered_;
  const auto quiet = now - last_progress_;
  switch (state_) {
    case State::kHead:
      if (admission_ == Admission::kProbe && in_state > kProbeTime) return close();
      if (input_.empty() ? in_state > options.idle_timeout : in_state > options.head_timeout) {
        if (input_.empty()) return close();
        must_close_ = true;
        send(error_reply(408, "The request's head did not arrive in time."));
      }
      return;
    case State::kBody:
      if (quiet > options.body_timeout || in_state > options.body_total_timeout) {
        must_close_ = true;
        send(error_reply(408, "The request's body did not arrive in time."));
      }
      return;
    case State::kCall:
      if (!writing_.empty() && quiet > options.write_timeout) return close();
      if (has_more_input_ || half_closed_) poll_peer();
      if (state_ == State::kCall && reply_ && reply_->streaming() && !head_sent_ &&
          in_state > options.stream_head_hold) {
        reply_->open();
        step_call();
      }
      comment(now);
      return;
    case State::kReply:
      if (quiet > options.write_timeout) close();
      return;
    case State::kLinger:
      if (in_state > kLingerTime) close();
      return;
    case State::kClosed: return;
  }
}

// ---- input

void Connection::arm_read() {
  if (read_armed_ || state_ == State::kClosed) return;
  read_armed_ = true;
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](ErrorCode ec) {
    self->read_armed_ = false;
    if (self->state_ == State::kClosed) return;
    ec ? self->close() : self->on_readable();
  });
}

void Connection::on_readable() {
  switch (state_) {
    case State::kHead:
    case State::kBody:
    case State::kLinger: return read_input();
    case State::kCall: return look_at_peer();
    case State::kReply:
    case State::kClosed: return;  // on_flushed arms again
  }
}

void Connection::read_input() {
  std::array<char, kReadBytes> bytes;
  for (std::size_t i = 0; i < kMaxReadsPerWake; ++i) {
    ErrorCode ec;
    const std::size_t n = socket_.read_some(asio::buffer(bytes), ec);
    if (ec == asio::error::would_block) break;
    if (ec) return close();  // also an end-of-file between requests, or inside one
    last_progress_ = SteadyClock::now();
    if (state_ == State::kLinger) {
      lingered_bytes_ += n;
      if (lingered_bytes_ > kMaxLingerBytes) return close();
      continue;
    }
    if (state_ == State::kHead && input_.empty()) enter(State::kHead);  // the head's time runs from its first byte
    input_.append({bytes.data(), n});
    if (!count_pending()) return;
    advance();
    if (state_ != State::kHead && state_ != State::kBody && state_ != State::kLinger) return;
  }
  arm_read();
}

// The engine works; what does the client's side of the socket say? Nothing is read, so that pipelining stays bounded.
void Connection::look_at_peer() {
  char byte = 0;
  const auto n = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n > 0) {
    has_more_input_ = true;  // readable for good: tick() looks for the end from here on
  } else if (n == 0) {
    on_half_close();
  } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
    arm_read();
  } else {
    close();
  }
}

void Connection::on_half_close() {
  if (std::exchange(half_closed_, true)) return;
  if (head_sent_) {
    append_chunk(":\n\n");
  } else if (parser_.head().is_http_1_1) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
  }
  socket_.async_wait(Socket::wait_error, [self = shared_from_this()](ErrorCode ec) {
    if (!ec && self->state_ != State::kClosed) self->poll_peer();
  });
  flush();
}

void Connection::poll_peer() {
  pollfd entry{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
  if (::poll(&entry, 1, 0) <= 0) return;
  if ((entry.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) return close();
  if ((entry.revents & POLLRDHUP) != 0 && state_ == State::kCall) on_half_close();
}

void Connection::advance() {
  if (state_ == State::kHead) {
    switch (parser_.read_head(input_)) {
      case ParseResult::kNeedMore: return;
      case ParseResult::kFailed: return on_parse_failure();
      case ParseResult::kReady: on_head(); break;
    }
  }
  if (state_ != State::kBody) return;
  const std::uint64_t limit = refusal_ ? kMaxDroppedBodyBytes : shared_.options.max_body_bytes;
  switch (parser_.read_body(input_, limit)) {
    case ParseResult::kNeedMore: return;
    case ParseResult::kFailed: return on_parse_failure();
    case ParseResult::kReady: break;
  }
  refusal_ ? send(*std::exchange(refusal_, std::nullopt)) : dispatch();
}

// Takes the bytes that wait to be parsed into the share of all connections, or refuses the request.
bool Connection::count_pending() {
  const std::uint64_t bytes = input_.size() + parser_.body_bytes();
  if (!pending_) pending_.emplace(shared_.pending_bodies);
  if (pending_->resize(bytes - std::min(bytes, HttpOptions::kFreeBytes))) return true;
  must_close_ = true;
  send(error_reply(503,
                   fmt::format("The requests that this server is receiving have {} bytes together, its limit. Send the "
                               "request again later.",
                               shared_.options.max_pending_body_bytes),
                   "overloaded"));
  return false;
}

void Connection::on_parse_failure() {
  must_close_ = true;
  // A refused request whose body turned out too long to drop keeps its own reply.
  send(refusal_ ? *std::exchange(refusal_, std::nullopt) : parser_.failure());
}

void Connection::on_head() {
  const HttpHead& head = parser_.head();
  request_id_ = request_id(head.request_id);
  refusal_ = refusal();
  enter(State::kBody);
  if (!head.has_body()) return;
  // Once its body has begun, or is announced with no wish to wait, a short one is read and dropped: the connection
  // stays usable. A client that waits for "100 Continue" may never send it, and a long one is not worth it.
  const bool is_short = !head.chunked && head.content_length <= kMaxDroppedBodyBytes;
  if (refusal_ && (head.expects_continue || !is_short)) {
    must_close_ = true;
    send(*std::exchange(refusal_, std::nullopt));
  } else if (head.expects_continue && input_.empty()) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
}

// ---- output

void Connection::flush() {
  if (write_armed_ || state_ == State::kClosed) return;
  if (writing_.empty()) {
    if (out_.empty()) {
      if (state_ == State::kReply) on_flushed();
      return;
    }
    writing_.swap(out_);
    written_ = 0;
    last_progress_ = SteadyClock::now();
  }
  write_armed_ = true;
  socket_.async_write_some(asio::buffer(writing_.data() + written_, writing_.size() - written_),
                           [self = shared_from_this()](ErrorCode ec, std::size_t n) {
                             self->write_armed_ = false;
                             if (self->state_ == State::kClosed) return;
                             ec ? self->close() : self->on_written(n);
                           });
}

void Connection::on_written(std::size_t n) {
  last_progress_ = SteadyClock::now();
  written_ += n;
  if (written_ == writing_.size()) writing_.clear();
  flush();
}

void Connection::on_flushed() { must_close_ ? linger() : next_request(); }

void Connection::next_request() {
  parser_.reset();
  pending_.reset();
  request_id_.clear();
  head_sent_ = false;
  has_more_input_ = false;
  half_closed_ = false;
  enter(State::kHead);
  advance();
  if (state_ == State::kHead || state_ == State::kBody) arm_read();
}

void Connection::linger() {
  ErrorCode ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  if (half_closed_) return close();  // nothing more can come
  enter(State::kLinger);
  arm_read();
}

}  // namespace tandem

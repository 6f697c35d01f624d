// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_RPC_HOSTILE_CONNECTION_H_
#define TANDEM_TESTS_RPC_HOSTILE_CONNECTION_H_

// Clients that do what Tandem's channels do not: a stock gRPC client with compression, and a connection whose
// HTTP/2 frames the test chooses.

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/ipc/descriptor.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "rpc/grpc/grpc_bytes.h"
#include "rpc/grpc/grpc_status.h"
#include "rpc/server.h"
#include "tests/rpc/stock_credentials.h"

namespace tandem::rpc::testing {

// Makes gRPC calls as a client of another language does.
class StockClient {
 public:
  explicit StockClient(int port) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto credentials = StockChannelCredentials(&arguments);
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port), credentials, arguments));
  }
  explicit StockClient(const Server& server) : StockClient(server.port()) {}

  absl::Status Call(const std::string& method, const std::string& request,
                    grpc_compression_algorithm algorithm = GRPC_COMPRESS_NONE) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
    context.set_compression_algorithm(algorithm);
    grpc::CompletionQueue queue;
    grpc::ByteBuffer response;
    grpc::Status status;
    auto reader = stub_->PrepareUnaryCall(&context, method, ToByteBuffer(Bytes(request)), &queue);
    reader->StartCall();
    reader->Finish(&response, &status, nullptr);
    void* tag;
    bool ok;
    queue.Next(&tag, &ok);
    return FromGrpcStatus(status);
  }

 private:
  std::unique_ptr<grpc::GenericStub> stub_;
};

// A TCP connection without TLS to a server of this machine. It reads only in the functions that say so. Not
// thread-safe.
class HostileConnection {
 public:
  explicit HostileConnection(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }

  bool connected() const { return connected_; }
  int fd() const { return socket_.get(); }

  // Sends the preface and empty settings. Returns whether the server answered.
  bool Open() {
    if (!connected_) return false;
    Send(absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Frame(4, 0, 0, "")));
    return ReadFrame(absl::Seconds(30));
  }
  // Opens stream `stream`, an odd number larger than those before. `extra` is added to the header block.
  void Headers(uint32_t stream, absl::string_view method, absl::string_view extra = "") {
    Send(Frame(1, 4, stream, absl::StrCat(Block(method), extra)));
  }
  void Data(uint32_t stream, absl::string_view bytes, bool end = false) {
    Send(Frame(0, end ? 1 : 0, stream, bytes));
  }

  // Returns a frame of HTTP/2.
  static std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload) {
    const size_t size = payload.size();
    const auto byte = [](size_t value, int shift) { return static_cast<char>(value >> shift); };
    return absl::StrCat(std::string({byte(size, 16), byte(size, 8), byte(size, 0), static_cast<char>(type),
                                     static_cast<char>(flags), byte(stream, 24), byte(stream, 16),
                                     byte(stream, 8), byte(stream, 0)}),
                        payload);
  }
  // Returns the headers of a gRPC call, without Huffman coding and the dynamic table.
  static std::string Block(absl::string_view method) {
    return absl::StrCat("\x83\x86\x04", Text(method), "\x01", Text("test"), "\x0f\x10",
                        Text("application/grpc"), std::string(1, '\0'), Text("te"), Text("trailers"));
  }
  // Returns a header that is added to Block.
  static std::string Header(absl::string_view name, absl::string_view value) {
    return absl::StrCat(std::string(1, '\0'), Text(name), Text(value));
  }
  // Returns a message of gRPC: a flag, the length and `bytes`.
  static std::string Message(absl::string_view bytes, bool compressed = false) {
    return absl::StrCat(Prefix(bytes.size(), compressed), bytes);
  }
  static std::string Prefix(uint32_t size, bool compressed = false) {
    return std::string({static_cast<char>(compressed), static_cast<char>(size >> 24),
                        static_cast<char>(size >> 16), static_cast<char>(size >> 8),
                        static_cast<char>(size)});
  }

  // Blocks until all is sent. Returns false if the server has closed the connection, or takes nothing for a
  // minute.
  bool Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      pollfd one = {socket_.get(), POLLOUT, 0};
      if (::poll(&one, 1, 60'000) != 1) return false;
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // Sends `bytes` bytes of data on `stream`, as far as the server's windows allow. Returns how many were
  // sent, 0 if the stream or connection has ended or the server allows none for `patience`.
  size_t SendAllowed(uint32_t stream, size_t bytes, absl::Duration patience = absl::Seconds(2)) {
    const absl::Time end = MonotonicNow() + patience;
    size_t sent = 0;
    if (!TakeFrames(/*wait=*/false, end)) return 0;
    while (sent < bytes) {
      if (ended_.contains(stream)) return 0;
      int64_t& window = windows_.try_emplace(stream, initial_window_).first->second;
      const int64_t part =
          std::min<int64_t>({static_cast<int64_t>(bytes - sent), window, connection_window_, 16384});
      if (part <= 0) {
        if (sent > 0 || MonotonicNow() >= end) return sent;
        if (!TakeFrames(/*wait=*/true, end)) return 0;
        continue;
      }
      if (!Send(Frame(0, 0, stream, std::string(part, 'x')))) return 0;
      window -= part;
      connection_window_ -= part;
      sent += part;
    }
    return sent;
  }

  // Waits for a frame of the trailers of stream `stream`: the end of its call.
  bool AwaitAnswer(uint32_t stream) {
    const absl::Time end = MonotonicNow() + absl::Seconds(30);
    while (MonotonicNow() < end) {
      if (!ReadFrame(end - MonotonicNow())) return false;
      if (stream_ == stream && (type_ == 3 || (type_ == 1 && (flags_ & 1) != 0))) return true;
    }
    return false;
  }
  // Reads until the server closes the connection. Returns false if it does not within `timeout`.
  bool AwaitClosed(absl::Duration timeout = absl::Seconds(100)) {
    const absl::Time end = MonotonicNow() + timeout;
    while (MonotonicNow() < end) {
      pollfd one = {socket_.get(), POLLIN, 0};
      if (::poll(&one, 1, static_cast<int>(absl::ToInt64Milliseconds(end - MonotonicNow()) + 1)) != 1)
        continue;
      char bytes[4096];
      if (::recv(socket_.get(), bytes, sizeof(bytes), 0) <= 0) return true;
    }
    return false;
  }
  // Answers the pings that have arrived. Returns false if the server has closed the connection.
  bool AnswerPings() {
    pollfd one = {socket_.get(), POLLIN, 0};
    while (::poll(&one, 1, 0) == 1) {
      if (!ReadFrame(absl::Seconds(5))) return false;
      if (type_ == 6 && (flags_ & 1) == 0 && !Send(Frame(6, 1, 0, payload_))) return false;
    }
    return true;
  }

 private:
  static std::string Text(absl::string_view text) {
    std::string out;
    size_t size = text.size();
    if (size < 127) {
      out.push_back(static_cast<char>(size));
    } else {
      out.push_back(127);
      for (size -= 127; size >= 128; size >>= 7) out.push_back(static_cast<char>(128 | (size & 127)));
      out.push_back(static_cast<char>(size));
    }
    return out.append(text.data(), text.size());
  }
  bool Receive(char* to, size_t size, absl::Time end) {
    while (size > 0) {
      pollfd one = {socket_.get(), POLLIN, 0};
      const absl::Duration left = end - MonotonicNow();
      if (left <= absl::ZeroDuration()) return false;
      if (::poll(&one, 1, static_cast<int>(absl::ToInt64Milliseconds(left) + 1)) != 1) continue;
      const ssize_t received = ::recv(socket_.get(), to, size, 0);
      if (received <= 0) return false;
      to += received;
      size -= static_cast<size_t>(received);
    }
    return true;
  }
  // Handles the frames that have arrived, after waiting for one if `wait`. Returns false if the server has
  // closed the connection.
  bool TakeFrames(bool wait, absl::Time end) {
    pollfd one = {socket_.get(), POLLIN, 0};
    const auto ms = [&] { return static_cast<int>(absl::ToInt64Milliseconds(end - MonotonicNow()) + 1); };
    while (::poll(&one, 1, wait ? std::max(0, ms()) : 0) == 1) {
      wait = false;
      if (!ReadFrame(absl::Seconds(5))) return false;
    }
    return true;
  }
  void Note() {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(payload_.data());
    const auto number = [&](size_t at) {
      return static_cast<int64_t>(bytes[at]) << 24 | bytes[at + 1] << 16 | bytes[at + 2] << 8 | bytes[at + 3];
    };
    if (type_ == 3) ended_.insert(stream_);
    if (type_ == 8 && payload_.size() == 4) {
      (stream_ == 0 ? connection_window_ : windows_.try_emplace(stream_, initial_window_).first->second) +=
          number(0);
    }
    if (type_ != 4 || (flags_ & 1) != 0) return;
    for (size_t at = 0; at + 6 <= payload_.size(); at += 6) {
      if (bytes[at] != 0 || bytes[at + 1] != 4) continue;  // SETTINGS_INITIAL_WINDOW_SIZE
      const int64_t change = number(at + 2) - initial_window_;
      initial_window_ += change;
      for (auto& [stream, window] : windows_) window += change;
    }
    Send(Frame(4, 1, 0, ""));
  }
  bool ReadFrame(absl::Duration timeout) {
    const absl::Time end = MonotonicNow() + timeout;
    unsigned char head[9];
    if (!Receive(reinterpret_cast<char*>(head), sizeof(head), end)) return false;
    payload_.resize(head[0] << 16 | head[1] << 8 | head[2]);
    type_ = head[3];
    flags_ = head[4];
    stream_ = static_cast<uint32_t>(head[5]) << 24 | head[6] << 16 | head[7] << 8 | head[8];
    if (!Receive(payload_.data(), payload_.size(), end)) return false;
    Note();
    return true;
  }

  const ipc::Descriptor socket_;
  bool connected_ = false;
  int64_t connection_window_ = 65535, initial_window_ = 65535;
  std::map<uint32_t, int64_t> windows_;
  std::set<uint32_t> ended_;
  // The last frame that was read.
  uint8_t type_ = 0, flags_ = 0;
  uint32_t stream_ = 0;
  std::string payload_;
};

}  // namespace tandem::rpc::testing

#endif  // TANDEM_TESTS_RPC_HOSTILE_CONNECTION_H_

// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/segment_setup.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ipc/unix_socket.h"
#include "base/status.h"

namespace tandem::collectives::shm {
namespace {

// Keys in the group's store.
constexpr char kLeaderKey[] = "shm/leader";    // "<socket name> <secret>", or "!<reason of a failure>"
constexpr char kRefusalKey[] = "shm/refusal";  // the reason why a rank could not connect
std::string ProcessKey(int rank) { return absl::StrCat("shm/process/", rank); }

constexpr uint64_t kMagic = 0x74616e64656d3031;  // changes with the layout of the segment or of the messages
constexpr size_t kMaxText = 1000;

// Messages, each one packet of a SOCK_SEQPACKET socket.
struct Hello {  // from a rank to rank 0
  uint64_t magic = kMagic;
  int32_t rank = 0;
  int32_t has_memory = 0;  // the rank shares a mapping that its process has already
  char secret[32] = {};
};
struct Welcome {  // from rank 0 to a rank, with the descriptor unless the rank has the memory
  uint64_t magic = kMagic;
};
struct Mapped {  // from a rank to rank 0; code 0, or the error of mapping
  int32_t code = 0;
  uint32_t length = 0;
  char text[kMaxText] = {};
};
using Go = Mapped;  // from rank 0 to a rank: all ranks have mapped the segment, or an error

Mapped ToMessage(const absl::Status& status) {
  Mapped message;
  message.code = static_cast<int32_t>(status.code());
  message.length = static_cast<uint32_t>(std::min(status.message().size(), kMaxText));
  if (message.length > 0) std::memcpy(message.text, status.message().data(), message.length);
  return message;
}

absl::Status FromMessage(const Mapped& message) {
  if (message.code == 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(message.code),
                      absl::string_view(message.text, std::min<size_t>(message.length, kMaxText)));
}

bool SameProcess(const BackendOptions& options, int a, int b) {
  return options.peers[a].pid == options.peers[b].pid && options.peers[a].host == options.peers[b].host;
}

// Returns true if `rank` is the first rank of its process and other ranks may be threads of that process.
bool SpeaksForItsProcess(const BackendOptions& options, int rank) {
  bool others = false;
  for (int s = 0; s < options.world_size; ++s) {
    if (s < rank && SameProcess(options, s, rank)) return false;
    others |= s > rank && SameProcess(options, s, rank);
  }
  return others;
}

// ---- rank 0

struct Client {
  ipc::Descriptor socket;
  int rank = -1;  // -1: not announced yet
  bool has_memory = false;
  bool mapped = false;
};

class SegmentOwner {
 public:
  explicit SegmentOwner(const BackendOptions& options)
      : options_(options), mapped_(options.world_size, false) {}

  absl::StatusOr<SegmentSetup> Run() {
    mapped_[0] = true;
    absl::Status status = Begin();
    if (status.ok()) status = Gather();
    if (!status.ok()) (void)options_.store->Set(kLeaderKey, absl::StrCat("!", status.message()));
    const Go go = ToMessage(status);
    for (const Client& client : clients_) {
      if (client.rank >= 0) ipc::SendPacket(client.socket.get(), &go, sizeof(go));
    }
    TANDEM_RETURN_IF_ERROR(status);
    (void)options_.store->Delete(kLeaderKey);  // no rank needs it any more
    SegmentSetup setup;
    setup.segment = std::move(segment_);
    setup.segment->CloseDescriptor();
    for (Client& client : clients_) {
      if (client.rank >= 0 && !(client.has_memory && SameProcess(options_, 0, client.rank))) {
        setup.watched.push_back({client.rank, std::move(client.socket)});
      }
    }
    return setup;
  }

 private:
  absl::Status Begin() {
    TANDEM_ASSIGN_OR_RETURN(segment_, Segment::Create(options_.world_size));
    const std::string name = absl::StrCat("tandem-shm-", ipc::RandomToken());
    TANDEM_ASSIGN_OR_RETURN(listener_, ipc::ListenAbstract(name, kMaxRanks));
    if (SpeaksForItsProcess(options_, 0)) {
      TANDEM_RETURN_IF_ERROR(options_.store->Set(ProcessKey(0), OfferToThisProcess(segment_)));
    }
    secret_ = ipc::RandomToken();
    return options_.store->Set(kLeaderKey, absl::StrCat(name, " ", secret_));
  }

  // Waits until all ranks have mapped the segment.
  absl::Status Gather() {
    absl::Time next_look = MonotonicNow() + absl::Milliseconds(200);
    while (true) {
      std::string absent;
      for (int rank = 0; rank < options_.world_size; ++rank) {
        if (!mapped_[rank]) absl::StrAppend(&absent, absent.empty() ? "" : ", ", "rank ", rank);
      }
      if (absent.empty()) return absl::OkStatus();
      const absl::Time now = MonotonicNow();
      if (now >= options_.deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat(absent, " did not come to share memory for group '", options_.group, "'"));
      }
      if (now >= next_look) {  // rarely, because the store may be far away
        TANDEM_RETURN_IF_ERROR(LookForRefusal());
        next_look = now + absl::Milliseconds(200);
      }
      std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
      for (const Client& client : clients_) polled.push_back({client.socket.get(), POLLIN, 0});
      poll(polled.data(), polled.size(), ipc::MillisecondsUntil(std::min(next_look, options_.deadline), 200));
      for (size_t i = clients_.size(); i-- > 0;) {
        if (polled[i + 1].revents == 0) continue;
        TANDEM_ASSIGN_OR_RETURN(const bool stays, Receive(clients_[i]));
        if (!stays) clients_.erase(clients_.begin() + i);
      }
      if (polled[0].revents != 0) {
        ipc::Descriptor client = ipc::AcceptAbstract(listener_.get());
        if (client.get() >= 0 && clients_.size() < 2 * kMaxRanks) {
          clients_.push_back({std::move(client)});
        } else if (client.get() < 0 && (errno == EMFILE || errno == ENFILE)) {
          // The waiting client would make poll() return at once, again and again.
          absl::SleepFor(absl::Milliseconds(20));
        }
      }
    }
  }

  absl::Status LookForRefusal() {
    const auto keys = options_.store->List(kRefusalKey);
    if (!keys.ok() || keys->empty()) return absl::OkStatus();
    const auto text = options_.store->Get(keys->front(), absl::Seconds(1));
    return absl::FailedPreconditionError(text.ok() ? *text : std::string(text.status().message()));
  }

  // Receives one packet. Returns false if the connection must be closed because its greeting is wrong.
  absl::StatusOr<bool> Receive(Client& client) {
    if (client.rank < 0) {
      Hello hello;
      if (!ipc::ReceivePacket(client.socket.get(), &hello, sizeof(hello)) ||
          absl::string_view(hello.secret, sizeof(hello.secret)) != secret_) {
        return false;
      }
      if (hello.magic != kMagic) {
        return absl::FailedPreconditionError(
            "a rank runs another version, whose layout of shared memory differs: start the same version on "
            "all");
      }
      if (hello.rank <= 0 || hello.rank >= options_.world_size) return false;
      client.rank = hello.rank;
      client.has_memory = hello.has_memory != 0;
      const Welcome welcome;
      if (!ipc::SendPacket(client.socket.get(), &welcome, sizeof(welcome),
                           client.has_memory ? -1 : segment_->descriptor())) {
        return Died(client.rank);
      }
      return true;
    }
    Mapped mapped;
    if (!ipc::ReceivePacket(client.socket.get(), &mapped, sizeof(mapped))) return Died(client.rank);
    if (mapped.code != 0) return FromMessage(mapped);
    mapped_[client.rank] = true;
    return true;
  }

  absl::Status Died(int rank) const {
    return absl::UnavailableError(
        absl::StrCat("rank ", rank, " ended while group '", options_.group, "' was being set up"));
  }

  const BackendOptions& options_;
  std::shared_ptr<Segment> segment_;
  ipc::Descriptor listener_;
  std::string secret_;
  std::vector<Client> clients_;
  std::vector<bool> mapped_;
};

// ---- the other ranks

absl::Status AwaitReadable(int socket, const BackendOptions& options) {
  if (ipc::AwaitReadable(socket, options.deadline)) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("not all ranks came to share memory for group '", options.group, "' in time"));
}

absl::StatusOr<ipc::Descriptor> Connect(const BackendOptions& options, std::string* secret) {
  const auto leader = options.store->Get(kLeaderKey, options.deadline - MonotonicNow());
  TANDEM_RETURN_IF_ERROR(leader);
  if (absl::StartsWith(*leader, "!")) return absl::FailedPreconditionError(leader->substr(1));
  const std::vector<std::string> fields = absl::StrSplit(*leader, ' ');
  if (fields.size() != 2 || fields[1].size() != sizeof(Hello::secret)) {
    return absl::FailedPreconditionError("the store holds no socket address of rank 0 under 'shm/leader'");
  }
  *secret = fields[1];
  absl::StatusOr<ipc::Descriptor> connection = ipc::ConnectAbstract(fields[0]);
  if (!connection.ok()) {
    // Rank 0 may have given up meanwhile, and stored the reason.
    const auto again = options.store->Get(kLeaderKey, absl::Seconds(1));
    if (again.ok() && absl::StartsWith(*again, "!")) return absl::FailedPreconditionError(again->substr(1));
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", options.rank, " cannot reach rank 0's unix socket (", connection.status().message(),
        "): they run in different network namespaces (containers), or rank 0 has ended; use backend tcp"));
  }
  return connection;
}

// Returns the error of a rank whose connection rank 0 has closed. Rank 0 may have given up before it knew of
// this rank, and stored the reason.
absl::Status Gone(const BackendOptions& options) {
  const auto leader = options.store->Get(kLeaderKey, absl::ZeroDuration());
  if (leader.ok() && absl::StartsWith(*leader, "!")) return absl::FailedPreconditionError(leader->substr(1));
  return absl::UnavailableError(
      absl::StrCat("rank 0 ended while group '", options.group, "' was being set up"));
}

// Returns the segment that another thread of this process has mapped; nullptr if there is none.
absl::StatusOr<std::shared_ptr<Segment>> FindShared(const BackendOptions& options) {
  for (int s = 0; s < options.rank; ++s) {
    if (!SameProcess(options, s, options.rank)) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::string key,
                            options.store->Get(ProcessKey(s), options.deadline - MonotonicNow()));
    return FindInThisProcess(key);  // nullptr also if equal process ids belong to different processes
  }
  return nullptr;
}

absl::StatusOr<SegmentSetup> Join(const BackendOptions& options, bool* connected) {
  std::string secret;
  TANDEM_ASSIGN_OR_RETURN(ipc::Descriptor connection, Connect(options, &secret));
  *connected = true;
  SegmentSetup setup;
  TANDEM_ASSIGN_OR_RETURN(setup.segment, FindShared(options));
  Hello hello;
  hello.rank = options.rank;
  hello.has_memory = setup.segment != nullptr;
  std::memcpy(hello.secret, secret.data(), sizeof(hello.secret));
  if (!ipc::SendPacket(connection.get(), &hello, sizeof(hello))) return Gone(options);

  Welcome welcome;
  ipc::Descriptor memory;
  TANDEM_RETURN_IF_ERROR(AwaitReadable(connection.get(), options));
  Mapped mapped;
  if (!ipc::ReceivePacket(connection.get(), &welcome, sizeof(welcome), &memory)) return Gone(options);
  if (!hello.has_memory) {
    auto segment = Segment::Map(std::move(memory), options.world_size);
    if (segment.ok()) {
      setup.segment = *std::move(segment);
    } else {
      mapped = ToMessage(Annotate(segment.status(), absl::StrCat("rank ", options.rank)));
    }
  }
  if (setup.segment != nullptr && SpeaksForItsProcess(options, options.rank)) {
    TANDEM_RETURN_IF_ERROR(options.store->Set(ProcessKey(options.rank), OfferToThisProcess(setup.segment)));
  }
  if (!ipc::SendPacket(connection.get(), &mapped, sizeof(mapped))) return Gone(options);

  Go go;
  TANDEM_RETURN_IF_ERROR(AwaitReadable(connection.get(), options));
  if (!ipc::ReceivePacket(connection.get(), &go, sizeof(go))) return Gone(options);
  TANDEM_RETURN_IF_ERROR(FromMessage(go));
  if (!(hello.has_memory && SameProcess(options, 0, options.rank))) {
    setup.watched.push_back({0, std::move(connection)});
  }
  return setup;
}

}  // namespace

absl::Status CheckViable(const BackendOptions& options) {
  if (options.world_size > kMaxRanks) {
    return absl::FailedPreconditionError(absl::StrCat("backend shm serves at most ", kMaxRanks,
                                                      " ranks on one host, not ", options.world_size));
  }
  for (size_t s = 1; s < options.peers.size(); ++s) {
    if (options.peers[s].host == options.peers[0].host) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("backend shm needs all ranks on one host, but rank 0 is on '", options.peers[0].host,
                     "' and rank ", s, " on '", options.peers[s].host, "'"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SegmentSetup> SetUpSegment(const BackendOptions& options) {
  if (options.world_size == 1) {
    TANDEM_ASSIGN_OR_RETURN(auto segment, Segment::Create(1));
    segment->CloseDescriptor();
    return SegmentSetup{std::move(segment), {}};
  }
  if (options.rank == 0) return SegmentOwner(options).Run();
  bool connected = false;
  absl::StatusOr<SegmentSetup> setup = Join(options, &connected);
  if (!setup.ok()) {
    // Reports the error, so that no rank waits for this one in vain: rank 0, if it was never reached, and
    // ranks that are threads of this process.
    if (!connected) {
      (void)options.store->Set(kRefusalKey, absl::StrCat(setup.status().message()));
    }
    if (SpeaksForItsProcess(options, options.rank)) {
      (void)options.store->Set(ProcessKey(options.rank), "none");
    }
  }
  return setup;
}

}  // namespace tandem::collectives::shm

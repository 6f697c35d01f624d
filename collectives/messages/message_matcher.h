// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_MESSAGES_MESSAGE_MATCHER_H_
#define TANDEM_COLLECTIVES_MESSAGES_MESSAGE_MATCHER_H_

// Matches messages with the receives that wait for them. A backend that carries messages itself (shm, tcp)
// only moves their bytes. A MessageMatcher decides the rest, so order, tags, sources, memory and refusals are
// the same over all of them.
//
// A message is sent in one of two ways. The sender chooses:
//
//   - Eager: its data follow at once. They go into the receive that waits for them, or into memory until a
//     receive comes. A rank keeps at most Limits::credit bytes of such messages of each sender. The receiver
//     reports the bytes that receives have matched, and the sender may send as many more.
//   - Announced: only its head is sent. When a receive has been matched to it, the receiver answers with a
//     grant, and the data follow directly into place. If the receive does not fit, the answer is a refusal,
//     and the data are never sent.
//
// Unmatched messages of any number and size therefore use bounded memory and never delay later ones.
//
// Ranks that all send before they receive, as in a ring, would wait for each other's grants. So a rank that
// waits for a grant itself grants announced messages without a receive too, up to Limits::spare bytes, and
// keeps them in memory.

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/operation.h"

namespace tandem::collectives {

// A send or recv that is not done. Backends derive their own state from it.
struct MessageTransfer {
  explicit MessageTransfer(const Operation& operation);

  Operation operation;
  size_t bytes;             // of the message
  size_t moved = 0;         // bytes of a recv that have arrived; a send's are counted by the backend
  uint64_t id = 0;          // of a send: chosen by the backend, unique among the sends of this rank
  int source = kAnySource;  // of a recv: the sender, once a message has been matched
};

// Matches the messages of one rank. Not thread-safe. Transfers are borrowed until Transport::Finish or
// TakeAnnounced gives them back.
class MessageMatcher {
 public:
  // The description of a message that travels before its data.
  struct Head {
    uint32_t tag = 0;
    DType dtype = DType::kU8;
    uint64_t bytes = 0;
    uint64_t id = 0;  // MessageTransfer::id of the send
    bool announced = false;
  };
  // Carries out what the matcher decides. The calls come from within the matcher's methods and must not call
  // the matcher.
  class Transport {
   public:
    virtual ~Transport() = default;
    // The transfer is done and no longer known to the matcher; it may be destroyed. `result` is the sender's
    // rank.
    virtual void Finish(MessageTransfer* transfer, absl::StatusOr<int> result) = 0;
    // Answers rank `to`, which announced message `id`: a grant if `wanted`, else a refusal.
    virtual void Answer(int to, uint64_t id, bool wanted) = 0;
    // Reports to rank `to` that receives have matched `bytes` of its eager messages.
    virtual void ReturnCredit(int to, uint64_t bytes) = 0;
  };
  // All ranks of a group must use the same limits.
  struct Limits {
    size_t credit = 0;          // bytes of unmatched eager messages that a rank keeps for each sender
    size_t largest_eager = 0;   // bytes; at most `credit`
    size_t overhead = 0;        // bytes that each eager message counts besides its data; at least 1
    size_t credit_portion = 0;  // matched bytes that are reported together
    size_t spare = 0;           // bytes of announced messages that a rank keeps without a receive
  };

  // `transport` must outlive the matcher.
  MessageMatcher(std::string group, int rank, int world_size, const Limits& limits, Transport* transport);

  // Begins a send to another rank, and returns the head to send. The transfer stays known to the matcher only
  // if the message is announced.
  Head Send(MessageTransfer* send);
  // Sends to this rank itself: the message is delivered or kept, and `send` is finished.
  void SendToSelf(MessageTransfer* send);
  // Returns the announced send `id`, which rank `from` has answered, and forgets it. Returns nullptr if there
  // is none.
  MessageTransfer* TakeAnnounced(int from, uint64_t id);
  // Rank `from` has matched `bytes` bytes of eager messages. Returns false if that is more than it was sent.
  bool CreditReturned(int from, uint64_t bytes);
  // Returns true if announced sends wait for an answer.
  bool HasAnnounced() const { return num_announced_ > 0; }

  // Begins a recv. It takes the first message that matches its source and tag, or waits for it.
  void Receive(MessageTransfer* recv);
  // Rank `from` has announced a message. `head.dtype` must be valid.
  void Announced(int from, const Head& head);
  // The data of an eager message, or the next `bytes` bytes of message `id` that this rank has granted,
  // follow from rank `from`. Return false if the peer should not have sent them. One message of each rank
  // arrives at a time.
  bool BeginEager(int from, const Head& head);
  bool BeginGranted(int from, uint64_t id, uint64_t bytes);
  // Returns the destination of the data that arrive from `from`; nullptr if they are to be dropped. The
  // memory stays valid until Complete, PeerLeft or EndAll.
  char* Destination(int from) const;
  // All data that the last Begin call named have arrived.
  void Complete(int from);

  // Rank `peer` has left the group, and everything that it sent has arrived: ends the transfers that need it
  // with Unavailable. Later ones end at once, except that messages which arrived completely can still be
  // received.
  void PeerLeft(int peer);
  // Returns the error of an operation that needs rank `peer` (kAnySource: any other rank), which has left.
  absl::Status HasLeft(const Operation& operation, int peer) const;
  // Ends all transfers, and forgets all messages.
  void EndAll(const absl::Status& status);

  // Return an operation that cannot end without rank `peer`, or that any other rank could end. nullptr:
  // there is none.
  const Operation* WaitsFor(int peer) const;
  const Operation* WaitsForAnySource() const;

 private:
  // A message that has arrived, or was announced, before its recv.
  struct Unexpected {
    int source;
    Head head;
    std::unique_ptr<char[]> data;  // nullptr if announced and not granted
    size_t moved = 0;
    bool complete = false;
    MessageTransfer* claimed_by = nullptr;  // gets the message when it is complete
  };
  using UnexpectedList = std::list<Unexpected>;
  // The data that are arriving from one rank.
  struct Incoming {
    enum class To : uint8_t { kNowhere, kRecv, kGrantedRecv, kUnexpected } to = To::kNowhere;
    uint64_t bytes = 0;
    uint64_t id = 0;                   // of a granted message
    MessageTransfer* recv = nullptr;   // of kRecv and kGrantedRecv
    UnexpectedList::iterator message;  // of kUnexpected
  };
  struct Peer {
    std::map<uint64_t, UnexpectedList::iterator> kept;  // messages granted without a recv, by the sender's id
    std::map<uint64_t, MessageTransfer*> announced;     // sends that wait for an answer, by id
    size_t unanswered = 0;                         // cost of eager messages sent, and not known to be matched
    std::map<uint64_t, MessageTransfer*> granted;  // recvs that wait for granted data, by the sender's id
    size_t held = 0;                               // cost of its eager messages that no recv has matched
    size_t taken = 0;                              // cost of matched ones that it has not been told of
    Incoming incoming;
    bool left = false;
  };

  size_t Cost(uint64_t bytes) const { return bytes + limits_.overhead; }
  static Head HeadOf(const MessageTransfer& send);
  // Grants announced messages that no recv has matched, as far as there is memory, if this rank waits for a
  // grant itself.
  void KeepAnnounced();
  // Forgets an unexpected message, and returns its memory.
  void Remove(UnexpectedList::iterator message);
  // Removes and returns the first recv that waits for such a message; nullptr if there is none.
  MessageTransfer* TakePosted(int from, uint32_t tag);
  // Grants the message that `from` announced to `recv`; or refuses it, if it does not fit.
  void AnswerFor(int from, const Head& head, MessageTransfer* recv);
  // Gives a complete message to `recv`, and removes it.
  void Deliver(UnexpectedList::iterator message, MessageTransfer* recv);
  // An eager message needs no memory for unmatched messages any more.
  void Taken(int from, const Head& head);
  absl::Status CheckFits(const MessageTransfer& recv, int from, const Head& head) const;
  bool AllOthersLeft() const;

  const std::string group_;
  const int rank_;
  const Limits limits_;
  Transport* const transport_;
  std::vector<Peer> peers_;             // by rank
  std::list<MessageTransfer*> posted_;  // recvs without a message, in order
  size_t num_announced_ = 0;            // in all Peer::announced
  size_t kept_ = 0;                     // bytes of announced messages that are kept
  UnexpectedList unexpected_;           // in order of arrival
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_MESSAGES_MESSAGE_MATCHER_H_

// SPDX-License-Identifier: Apache-2.0
#include "collectives/messages/message_matcher.h"

#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/ranks.h"

namespace tandem::collectives {

MessageTransfer::MessageTransfer(const Operation& o)
    : operation(o), bytes((o.kind == OpKind::kSend ? o.in.count : o.out.count) * SizeOf(o.dtype)) {}

MessageMatcher::MessageMatcher(std::string group, int rank, int world_size, const Limits& limits,
                               Transport* transport)
    : group_(std::move(group)), rank_(rank), limits_(limits), transport_(transport), peers_(world_size) {}

MessageMatcher::Head MessageMatcher::HeadOf(const MessageTransfer& send) {
  return {send.operation.tag, send.operation.dtype, send.bytes, send.id, false};
}

MessageMatcher::Head MessageMatcher::Send(MessageTransfer* send) {
  const int to = send->operation.root;
  Peer& peer = peers_[to];
  Head head = HeadOf(*send);
  if (send->bytes <= limits_.largest_eager && Cost(send->bytes) <= limits_.credit - peer.unanswered) {
    peer.unanswered += Cost(send->bytes);
  } else {
    head.announced = true;
    peer.announced.emplace(send->id, send);
    ++num_announced_;
    KeepAnnounced();
  }
  return head;
}

void MessageMatcher::SendToSelf(MessageTransfer* send) {
  const Operation& operation = send->operation;
  const Head head = HeadOf(*send);
  if (MessageTransfer* const recv = TakePosted(rank_, operation.tag); recv != nullptr) {
    absl::Status fits = CheckFits(*recv, rank_, head);
    if (fits.ok() && send->bytes > 0) {
      std::memcpy(recv->operation.out.data, operation.in.data, send->bytes);
    }
    transport_->Finish(recv, fits.ok() ? absl::StatusOr<int>(rank_) : std::move(fits));
  } else {
    std::unique_ptr<char[]> data(new char[send->bytes]);
    if (send->bytes > 0) std::memcpy(data.get(), operation.in.data, send->bytes);
    unexpected_.push_back({.source = rank_, .head = head, .data = std::move(data), .complete = true});
  }
  transport_->Finish(send, rank_);
}

MessageTransfer* MessageMatcher::TakeAnnounced(int from, uint64_t id) {
  std::map<uint64_t, MessageTransfer*>& announced = peers_[from].announced;
  const auto found = announced.find(id);
  if (found == announced.end()) return nullptr;
  MessageTransfer* const send = found->second;
  announced.erase(found);
  --num_announced_;
  return send;
}

bool MessageMatcher::CreditReturned(int from, uint64_t bytes) {
  Peer& peer = peers_[from];
  if (bytes > peer.unanswered) return false;
  peer.unanswered -= bytes;
  return true;
}

void MessageMatcher::Receive(MessageTransfer* recv) {
  const Operation& operation = recv->operation;
  for (auto message = unexpected_.begin(); message != unexpected_.end(); ++message) {
    if (message->claimed_by != nullptr || message->head.tag != operation.tag) continue;
    if (operation.root != kAnySource && operation.root != message->source) continue;
    recv->source = message->source;
    if (message->data == nullptr) {
      AnswerFor(message->source, message->head, recv);
      unexpected_.erase(message);
    } else if (message->complete) {
      Deliver(message, recv);
    } else {
      message->claimed_by = recv;
    }
    return;
  }
  if (operation.root != kAnySource ? peers_[operation.root].left : AllOthersLeft()) {
    return transport_->Finish(recv, HasLeft(operation, operation.root));
  }
  posted_.push_back(recv);
}

void MessageMatcher::Announced(int from, const Head& head) {
  MessageTransfer* const recv = TakePosted(from, head.tag);
  if (recv != nullptr) return AnswerFor(from, head, recv);
  unexpected_.push_back({.source = from, .head = head});
  KeepAnnounced();
}

void MessageMatcher::KeepAnnounced() {
  if (num_announced_ == 0) return;
  for (auto message = unexpected_.begin(); message != unexpected_.end(); ++message) {
    const Head& head = message->head;
    if (message->data != nullptr || head.bytes > limits_.spare - kept_) continue;
    kept_ += head.bytes;
    message->data.reset(new char[head.bytes]);
    peers_[message->source].kept.emplace(head.id, message);
    transport_->Answer(message->source, head.id, /*wanted=*/true);
  }
}

bool MessageMatcher::BeginEager(int from, const Head& head) {
  Peer& peer = peers_[from];
  if (head.bytes > limits_.largest_eager || Cost(head.bytes) > limits_.credit - peer.held) return false;
  peer.held += Cost(head.bytes);
  MessageTransfer* const recv = TakePosted(from, head.tag);
  if (recv == nullptr) {
    std::unique_ptr<char[]> data(new char[head.bytes]);
    unexpected_.push_back({.source = from, .head = head, .data = std::move(data)});
    peer.incoming = {Incoming::To::kUnexpected, head.bytes, 0, nullptr, std::prev(unexpected_.end())};
    return true;
  }
  Taken(from, head);
  if (absl::Status fits = CheckFits(*recv, from, head); !fits.ok()) {
    peer.incoming = {};
    transport_->Finish(recv, std::move(fits));
  } else {
    peer.incoming = {Incoming::To::kRecv, head.bytes, 0, recv, {}};
  }
  return true;
}

bool MessageMatcher::BeginGranted(int from, uint64_t id, uint64_t bytes) {
  Peer& peer = peers_[from];
  if (const auto found = peer.granted.find(id); found != peer.granted.end()) {
    if (bytes > found->second->bytes - found->second->moved) return false;
    peer.incoming = {Incoming::To::kGrantedRecv, bytes, id, found->second, {}};
    return true;
  }
  const auto found = peer.kept.find(id);
  if (found == peer.kept.end() || bytes > found->second->head.bytes - found->second->moved) return false;
  peer.incoming = {Incoming::To::kUnexpected, bytes, id, nullptr, found->second};
  return true;
}

char* MessageMatcher::Destination(int from) const {
  const Incoming& incoming = peers_[from].incoming;
  switch (incoming.to) {
    case Incoming::To::kNowhere:
      return nullptr;
    case Incoming::To::kRecv:
    case Incoming::To::kGrantedRecv:
      return static_cast<char*>(incoming.recv->operation.out.data) + incoming.recv->moved;
    case Incoming::To::kUnexpected:
      return incoming.message->data.get() + incoming.message->moved;
  }
  return nullptr;
}

void MessageMatcher::Complete(int from) {
  Peer& peer = peers_[from];
  const Incoming incoming = std::exchange(peer.incoming, Incoming());
  switch (incoming.to) {
    case Incoming::To::kNowhere:
      return;
    case Incoming::To::kRecv:
      return transport_->Finish(incoming.recv, from);
    case Incoming::To::kGrantedRecv:
      incoming.recv->moved += incoming.bytes;
      if (incoming.recv->moved < incoming.recv->bytes) return;
      peer.granted.erase(incoming.id);
      return transport_->Finish(incoming.recv, from);
    case Incoming::To::kUnexpected:
      incoming.message->moved += incoming.bytes;
      if (incoming.message->moved < incoming.message->head.bytes) return;
      incoming.message->complete = true;
      if (incoming.message->head.announced) peer.kept.erase(incoming.id);
      if (MessageTransfer* const recv = incoming.message->claimed_by) Deliver(incoming.message, recv);
      return;
  }
}

MessageTransfer* MessageMatcher::TakePosted(int from, uint32_t tag) {
  for (auto it = posted_.begin(); it != posted_.end(); ++it) {
    MessageTransfer* const recv = *it;
    const Operation& operation = recv->operation;
    if (operation.tag != tag || (operation.root != kAnySource && operation.root != from)) continue;
    posted_.erase(it);
    recv->source = from;
    return recv;
  }
  return nullptr;
}

void MessageMatcher::AnswerFor(int from, const Head& head, MessageTransfer* recv) {
  absl::Status fits = CheckFits(*recv, from, head);
  transport_->Answer(from, head.id, fits.ok());
  if (!fits.ok()) return transport_->Finish(recv, std::move(fits));
  peers_[from].granted.emplace(head.id, recv);
}

void MessageMatcher::Deliver(UnexpectedList::iterator message, MessageTransfer* recv) {
  absl::Status fits = CheckFits(*recv, message->source, message->head);
  if (fits.ok() && recv->bytes > 0) std::memcpy(recv->operation.out.data, message->data.get(), recv->bytes);
  const int source = message->source;
  if (!message->head.announced) Taken(source, message->head);
  Remove(message);
  transport_->Finish(recv, fits.ok() ? absl::StatusOr<int>(source) : std::move(fits));
}

void MessageMatcher::Remove(UnexpectedList::iterator message) {
  const bool kept = message->head.announced && message->data != nullptr;
  if (kept) kept_ -= message->head.bytes;
  unexpected_.erase(message);
  if (kept) KeepAnnounced();
}

void MessageMatcher::Taken(int from, const Head& head) {
  if (from == rank_) return;
  Peer& peer = peers_[from];
  const size_t cost = Cost(head.bytes);
  peer.held -= cost;
  peer.taken += cost;
  // A report for each message would cost as much as a small message.
  if (peer.taken >= limits_.credit_portion) transport_->ReturnCredit(from, std::exchange(peer.taken, 0));
}

absl::Status MessageMatcher::CheckFits(const MessageTransfer& recv, int from, const Head& head) const {
  if (recv.operation.dtype == head.dtype && recv.bytes == head.bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Describe(recv.operation), " of group '", group_, "': rank ", from, " sent ",
                   Name(head.dtype), " x ", head.bytes / SizeOf(head.dtype),
                   " instead; both sides must give the same dtype and count (the message is dropped)"));
}

void MessageMatcher::PeerLeft(int p) {
  Peer& peer = peers_[p];
  peer.left = true;
  const auto end = [&](MessageTransfer* transfer) {
    transport_->Finish(transfer, HasLeft(transfer->operation, p));
  };
  num_announced_ -= peer.announced.size();
  for (const auto& [id, send] : std::exchange(peer.announced, {})) end(send);
  for (const auto& [id, recv] : std::exchange(peer.granted, {})) end(recv);
  peer.kept.clear();
  const Incoming incoming = std::exchange(peer.incoming, Incoming());
  if (incoming.to == Incoming::To::kRecv) end(incoming.recv);
  for (auto message = unexpected_.begin(); message != unexpected_.end();) {
    const auto next = std::next(message);
    if (message->source == p && !message->complete) {
      MessageTransfer* const recv = message->claimed_by;
      if (message->data != nullptr && message->head.announced) kept_ -= message->head.bytes;
      unexpected_.erase(message);
      if (recv != nullptr) end(recv);
    }
    message = next;
  }
  const bool all_left = AllOthersLeft();
  for (auto it = posted_.begin(); it != posted_.end();) {
    const auto next = std::next(it);
    MessageTransfer* const recv = *it;
    if (recv->operation.root == p || (all_left && recv->operation.root == kAnySource)) {
      posted_.erase(it);
      transport_->Finish(recv, HasLeft(recv->operation, recv->operation.root));
    }
    it = next;
  }
}

void MessageMatcher::EndAll(const absl::Status& status) {
  std::vector<MessageTransfer*> all;
  for (Peer& peer : peers_) {
    for (const auto& [id, send] : std::exchange(peer.announced, {})) all.push_back(send);
    for (const auto& [id, recv] : std::exchange(peer.granted, {})) all.push_back(recv);
    peer.kept.clear();
    const Incoming incoming = std::exchange(peer.incoming, Incoming());
    if (incoming.to == Incoming::To::kRecv) all.push_back(incoming.recv);
  }
  for (MessageTransfer* const recv : std::exchange(posted_, {})) all.push_back(recv);
  for (const Unexpected& message : std::exchange(unexpected_, {})) {
    if (message.claimed_by != nullptr) all.push_back(message.claimed_by);
  }
  num_announced_ = 0;
  kept_ = 0;
  for (MessageTransfer* const transfer : all) transport_->Finish(transfer, status);
}

const Operation* MessageMatcher::WaitsFor(int p) const {
  const Peer& peer = peers_[p];
  if (!peer.announced.empty()) return &peer.announced.begin()->second->operation;
  if (!peer.granted.empty()) return &peer.granted.begin()->second->operation;
  const Incoming& incoming = peer.incoming;
  if (incoming.to == Incoming::To::kRecv) return &incoming.recv->operation;
  for (const Unexpected& message : unexpected_) {
    if (message.source == p && message.claimed_by != nullptr) return &message.claimed_by->operation;
  }
  for (const MessageTransfer* recv : posted_) {
    if (recv->operation.root == p) return &recv->operation;
  }
  return nullptr;
}

const Operation* MessageMatcher::WaitsForAnySource() const {
  for (const MessageTransfer* recv : posted_) {
    if (recv->operation.root == kAnySource) return &recv->operation;
  }
  return nullptr;
}

absl::Status MessageMatcher::HasLeft(const Operation& operation, int peer) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (peer == kAnySource ? rank != rank_ : rank == peer) ranks.push_back(rank);
  }
  return absl::UnavailableError(absl::StrCat(Describe(operation), " on group '", group_,
                                             "': ", NameRanks(ranks), ranks.size() == 1 ? " has" : " have",
                                             " left the group"));
}

bool MessageMatcher::AllOthersLeft() const {
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (static_cast<int>(rank) != rank_ && !peers_[rank].left) return false;
  }
  return peers_.size() > 1;
}

}  // namespace tandem::collectives

// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/etcd/etcd_store.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "cluster/store/limits.h"
#include "etcd/rpc.pb.h"

namespace tandem::cluster {
namespace {

using etcdserverpb::Compare;
using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::RequestOp;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

constexpr absl::Duration kLongestRenewal = absl::Seconds(5);
constexpr size_t kOpsPerTxn = 120;  // etcd's default limit is 128

std::string RandomName() {
  std::random_device device;
  return absl::StrCat(absl::Hex(device(), absl::kZeroPad8), absl::Hex(device(), absl::kZeroPad8));
}

RequestOp RangeOp(const std::string& key, bool keys_only = false) {
  RequestOp op;
  op.mutable_request_range()->set_key(key);
  op.mutable_request_range()->set_keys_only(keys_only);
  return op;
}

RequestOp DeleteOp(const std::string& key) {
  RequestOp op;
  op.mutable_request_delete_range()->set_key(key);
  return op;
}

}  // namespace

EtcdStore::EtcdStore(std::unique_ptr<EtcdClient> client)
    : client_(std::move(client)),
      base_(absl::StrCat(client_->options().prefix, "/")),
      client_id_(RandomName()),
      watcher_(client_.get(), base_),
      timeout_(client_->options().open_timeout) {}

absl::StatusOr<std::unique_ptr<EtcdStore>> EtcdStore::Open(EtcdOptions options) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<EtcdClient> client, EtcdClient::Connect(std::move(options)));
  std::unique_ptr<EtcdStore> store(new EtcdStore(std::move(client)));
  if (store->client_->options().read_only) return store;
  TANDEM_RETURN_IF_ERROR(Annotate(store->JoinLease(), "opening the store in etcd"));
  store->timeout_ = store->client_->options().call_timeout;
  store->keeper_ = std::thread([self = store.get()] { self->KeepAlive(); });
  return store;
}

void EtcdStore::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    lost_ = absl::CancelledError(absl::StrCat(address(), ": the store was closed"));
  }
  client_->Stop();
  watcher_.WakeAll();
}

void EtcdStore::SetFence(std::string etcd_key, std::string value) {
  absl::MutexLock lock(&mutex_);
  fence_key_ = std::move(etcd_key);
  fence_value_ = std::move(value);
}

EtcdStore::~EtcdStore() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (keeper_.joinable()) keeper_.join();
}

absl::Status EtcdStore::JoinLease() {
  const std::string key = base_ + "lease";
  const absl::Time deadline = MonotonicNow() + timeout_;
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const Versioned held, Read(key));
    if (held.value.has_value()) {
      if (!absl::SimpleAtoi(*held.value, &lease_)) {
        return absl::FailedPreconditionError(
            absl::StrCat(address(), ": '", key, "' holds no lease: is the prefix used by something else?"));
      }
      etcdserverpb::LeaseKeepAliveRequest request;
      request.set_id(lease_);
      etcdserverpb::LeaseKeepAliveResponse response;
      TANDEM_RETURN_IF_ERROR(Call("Lease/LeaseKeepAlive", request, &response));
      if (response.ttl() > 0) {
        lease_length_ = absl::Seconds(response.ttl());
        return absl::OkStatus();
      }
      // The lease is running out just now, and its key with it.
    } else {
      TANDEM_ASSIGN_OR_RETURN(lease_, GrantLease(client_->options().lease, &lease_length_));
      TANDEM_ASSIGN_OR_RETURN(const bool first, Apply(key, 0, {Put(key, absl::StrCat(lease_))}));
      if (first) return absl::OkStatus();
      RevokeLease(lease_);  // another process was quicker
    }
    absl::MutexLock lock(&mutex_);
    AwaitFor(&mutex_, absl::Condition(&stopping_), absl::Milliseconds(100));
    if (MonotonicNow() > deadline)
      return absl::UnavailableError(absl::StrCat(address(), ": cannot agree on a lease"));
  }
}

absl::StatusOr<int64_t> EtcdStore::GrantLease(absl::Duration length, absl::Duration* granted) {
  etcdserverpb::LeaseGrantRequest grant;
  grant.set_ttl(std::max<int64_t>(1, absl::ToInt64Seconds(absl::Ceil(length, absl::Seconds(1)))));
  etcdserverpb::LeaseGrantResponse response;
  TANDEM_RETURN_IF_ERROR(Call("Lease/LeaseGrant", grant, &response));
  *granted = absl::Seconds(std::max<int64_t>(1, response.ttl()));
  return response.id();
}

void EtcdStore::RevokeLease(int64_t lease) {
  etcdserverpb::LeaseRevokeRequest revoke;
  revoke.set_id(lease);
  etcdserverpb::LeaseRevokeResponse revoked;
  (void)Call("Lease/LeaseRevoke", revoke, &revoked);
}

absl::Status EtcdStore::Beat(absl::string_view key, absl::Duration lease) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  if (!BeatsExpire(lease)) return Add(key, 1).status();
  const std::string etcd_key = Key(key);
  int64_t held = 0;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = beats_.find(etcd_key);
    if (found != beats_.end()) held = found->second;
  }
  if (held != 0) {
    etcdserverpb::LeaseKeepAliveRequest request;
    request.set_id(held);
    etcdserverpb::LeaseKeepAliveResponse response;
    TANDEM_RETURN_IF_ERROR(Call("Lease/LeaseKeepAlive", request, &response));
    if (response.ttl() > 0) {
      // Another process, which took this one for dead, may have deleted the key.
      TANDEM_ASSIGN_OR_RETURN(const Versioned there, Read(etcd_key));
      if (there.value.has_value()) return absl::OkStatus();
    } else {
      held = 0;
    }
  }
  if (held == 0) {
    absl::Duration granted;
    TANDEM_ASSIGN_OR_RETURN(held, GrantLease(lease, &granted));
    absl::MutexLock lock(&mutex_);
    beats_[etcd_key] = held;
  }
  TxnRequest txn;
  RequestOp put = Put(etcd_key, "1");
  put.mutable_request_put()->set_lease(held);
  *txn.add_success() = std::move(put);
  TxnResponse response;
  // Not by Call(): if this lease has run out meanwhile, the job's has not. The next Beat takes a new one.
  TANDEM_RETURN_IF_ERROR(Usable());
  return client_->Call("KV/Txn", txn, &response, timeout_);
}

void EtcdStore::KeepAlive() {
  const absl::Duration every = lease_length_ / 4;
  absl::Duration pause = every;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (AwaitFor(&mutex_, absl::Condition(&stopping_), pause)) return;
    }
    etcdserverpb::LeaseKeepAliveRequest request;
    request.set_id(lease_);
    etcdserverpb::LeaseKeepAliveResponse response;
    // Only a part of the lease, so that another member is asked in time. The destructor waits for this call.
    const absl::Status alive =
        client_->Call("Lease/LeaseKeepAlive", request, &response, std::min(every, kLongestRenewal));
    pause = alive.ok() ? every : every / 8;
    if (!alive.ok()) LogDebug(absl::StrCat("the job's lease in etcd was not renewed: ", alive.message()));
    if (!alive.ok() || response.ttl() > 0) continue;
    absl::MutexLock lock(&mutex_);
    lost_ = absl::FailedPreconditionError(absl::StrCat(
        address(), ": the job's lease of ", absl::FormatDuration(lease_length_),
        " has run out, because none of its processes reached etcd for so long; its keys are gone"));
    return;
  }
}

absl::Status EtcdStore::Usable() const {
  absl::MutexLock lock(&mutex_);
  return lost_;
}

absl::Status EtcdStore::Call(absl::string_view method, const google::protobuf::MessageLite& request,
                             google::protobuf::MessageLite* response, bool* repeated) {
  TANDEM_RETURN_IF_ERROR(Usable());
  const absl::Status status = client_->Call(method, request, response, timeout_, repeated);
  if (absl::StrContains(status.message(), "requested lease not found")) {
    absl::MutexLock lock(&mutex_);
    lost_ = absl::FailedPreconditionError(
        absl::StrCat(address(), ": the job's lease has run out; its keys are gone"));
    return lost_;
  }
  if (absl::StrContains(status.message(), "request is too large") ||
      absl::StrContains(status.message(), "larger than max") ||
      absl::StrContains(status.message(), "too many operations")) {
    return absl::InvalidArgumentError(absl::StrCat(
        status.message(),
        "; etcd takes values up to its --max-request-bytes, 1.5 MiB unless it was told otherwise"));
  }
  return status;
}

RequestOp EtcdStore::Put(const std::string& etcd_key, absl::string_view value) const {
  RequestOp op;
  op.mutable_request_put()->set_key(etcd_key);
  op.mutable_request_put()->set_value(std::string(value));
  op.mutable_request_put()->set_lease(lease_);
  return op;
}

std::string EtcdStore::QueuePrefix(absl::string_view queue) const {
  return absl::StrCat(base_, "q/", queue.size(), ":", queue, "/");
}

absl::StatusOr<EtcdStore::Versioned> EtcdStore::Read(const std::string& etcd_key) {
  RangeRequest request;
  request.set_key(etcd_key);
  RangeResponse response;
  TANDEM_RETURN_IF_ERROR(Call("KV/Range", request, &response));
  Versioned held;
  if (response.kvs_size() > 0) {
    held.value = std::move(*response.mutable_kvs(0)->mutable_value());
    held.revision = response.kvs(0).mod_revision();
  }
  return held;
}

absl::StatusOr<bool> EtcdStore::Apply(const std::string& guard, int64_t revision,
                                      std::vector<RequestOp> ops) {
  if (client_->options().read_only) {
    return absl::FailedPreconditionError(absl::StrCat(address(), " was opened to look at, not to change"));
  }
  int64_t last = 0, number;
  std::string fence_key, fence_value;
  {
    absl::MutexLock lock(&mutex_);
    if (!slots_.empty()) {
      last = slots_.back();
      slots_.pop_back();
    }
    number = next_change_++;
    fence_key = fence_key_;
    fence_value = fence_value_;
  }
  const std::string once = absl::StrCat(base_, "o/", client_id_, "/", number);
  TxnRequest txn;
  Compare* unseen = txn.add_compare();
  unseen->set_key(once);
  unseen->set_target(Compare::CREATE);
  unseen->set_create_revision(0);
  if (!guard.empty()) {
    Compare* unchanged = txn.add_compare();
    unchanged->set_key(guard);
    unchanged->set_target(Compare::MOD);
    unchanged->set_mod_revision(revision);
  }
  if (!fence_key.empty()) {
    Compare* same = txn.add_compare();
    same->set_key(fence_key);
    same->set_target(Compare::VALUE);
    same->set_value(fence_value);
  }
  for (RequestOp& op : ops) *txn.add_success() = std::move(op);
  *txn.add_success() = Put(once, "");
  if (last != 0) *txn.add_success() = DeleteOp(absl::StrCat(base_, "o/", client_id_, "/", last));
  *txn.add_failure() = RangeOp(once, /*keys_only=*/true);
  if (!fence_key.empty()) *txn.add_failure() = RangeOp(fence_key);
  TxnResponse response;
  bool repeated = false, applied = false, fenced = false;
  const absl::Status status = Call("KV/Txn", txn, &response, &repeated);
  if (status.ok()) {
    // The transaction reports a failure although it is applied: an earlier attempt succeeded, and its
    // response was lost.
    applied = response.succeeded() ||
              (response.responses_size() > 0 && response.responses(0).response_range().kvs_size() > 0);
  }
  if (status.ok() && !applied && response.responses_size() > 1) {
    const RangeResponse& fence = response.responses(1).response_range();
    fenced = fence.kvs_size() == 0 || fence.kvs(0).value() != fence_value;
  }
  absl::MutexLock lock(&mutex_);
  // After a call whose result is unknown, its key stays until the lease ends, because the call might still be
  // applied. The same holds for a repeated call, of which another copy may arrive.
  if (applied && !repeated) slots_.push_back(number);
  if (!applied && last != 0) slots_.push_back(last);
  TANDEM_RETURN_IF_ERROR(status);
  if (fenced) {
    return absl::AlreadyExistsError(
        absl::StrCat(address(), ": another process has the name of this one; nothing was changed"));
  }
  return applied;
}

absl::Status EtcdStore::Modify(
    absl::string_view key,
    const std::function<absl::StatusOr<absl::optional<std::string>>(const Versioned&)>& compute) {
  const std::string etcd_key = Key(key);
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const Versioned held, Read(etcd_key));
    TANDEM_ASSIGN_OR_RETURN(const absl::optional<std::string> value, compute(held));
    if (!value.has_value()) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(const bool applied, Apply(etcd_key, held.revision, {Put(etcd_key, *value)}));
    if (applied) return absl::OkStatus();
  }
}

absl::Status EtcdStore::Set(absl::string_view key, absl::string_view value) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, value));
  return Apply("", 0, {Put(Key(key), value)}).status();
}

absl::StatusOr<int64_t> EtcdStore::Add(absl::string_view key, int64_t delta) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  int64_t sum = 0;
  TANDEM_RETURN_IF_ERROR(
      Modify(key, [&](const Versioned& held) -> absl::StatusOr<absl::optional<std::string>> {
        absl::optional<absl::string_view> view;
        if (held.value.has_value()) view = *held.value;
        TANDEM_ASSIGN_OR_RETURN(sum, StoreSum(key, view, delta));
        return absl::optional<std::string>(absl::StrCat(sum));
      }));
  return sum;
}

absl::StatusOr<std::string> EtcdStore::CompareSet(absl::string_view key, absl::string_view expected,
                                                  absl::string_view desired) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, desired));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(key, expected));
  std::string holds;
  TANDEM_RETURN_IF_ERROR(
      Modify(key, [&](const Versioned& held) -> absl::StatusOr<absl::optional<std::string>> {
        holds = held.value.value_or("");
        if (holds != expected) return absl::optional<std::string>();
        holds = std::string(desired);
        return absl::optional<std::string>(holds);
      }));
  return holds;
}

absl::StatusOr<int64_t> EtcdStore::Append(absl::string_view key, absl::string_view value) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  int64_t length = 0;
  TANDEM_RETURN_IF_ERROR(
      Modify(key, [&](const Versioned& held) -> absl::StatusOr<absl::optional<std::string>> {
        const size_t before = held.value.has_value() ? held.value->size() : 0;
        TANDEM_RETURN_IF_ERROR(ValidateStoreSize(key, before + value.size()));
        std::string all = absl::StrCat(held.value.value_or(""), value);
        length = all.size();
        return absl::optional<std::string>(std::move(all));
      }));
  return length;
}

absl::Status EtcdStore::MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreEntries(keys, values));
  std::map<std::string, absl::string_view> last;  // etcd refuses a key that is named twice
  for (size_t i = 0; i < keys.size(); ++i) last[Key(keys[i])] = values[i];
  if (last.empty()) return absl::OkStatus();
  if (last.size() > kOpsPerTxn) {
    return absl::InvalidArgumentError(
        absl::StrCat("etcd sets at most ", kOpsPerTxn, " keys at once, not ", last.size()));
  }
  std::vector<RequestOp> ops;
  for (const auto& [key, value] : last) ops.push_back(Put(key, value));
  return Apply("", 0, std::move(ops)).status();
}

absl::StatusOr<bool> EtcdStore::Delete(absl::string_view key) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  const std::string etcd_key = Key(key);
  int64_t beat = 0;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = beats_.find(etcd_key);
    if (found != beats_.end()) {
      beat = found->second;
      beats_.erase(found);
    }
  }
  if (beat != 0) {
    TANDEM_ASSIGN_OR_RETURN(const Versioned held, Read(etcd_key));
    RevokeLease(beat);  // deletes the key
    if (!held.value.has_value()) return false;
    TANDEM_ASSIGN_OR_RETURN(const Versioned left, Read(etcd_key));
    if (!left.value.has_value()) return true;
  }
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const Versioned held, Read(etcd_key));
    if (!held.value.has_value()) return false;
    TANDEM_ASSIGN_OR_RETURN(const bool applied, Apply(etcd_key, held.revision, {DeleteOp(etcd_key)}));
    if (applied) return true;
  }
}

absl::Status EtcdStore::ReadKeys(absl::Span<const std::string> keys, std::vector<std::string>* missing,
                                 std::vector<std::string>* values) {
  missing->clear();
  if (values != nullptr) values->clear();
  size_t bytes = 0;
  int64_t revision = 0;  // of the first part; the others are read at that revision
  for (size_t begin = 0; begin < keys.size(); begin += kOpsPerTxn) {
    const size_t end = std::min(keys.size(), begin + kOpsPerTxn);
    TxnRequest txn;
    for (size_t i = begin; i < end; ++i) {
      *txn.add_success() = RangeOp(Key(keys[i]), /*keys_only=*/values == nullptr);
      txn.mutable_success(static_cast<int>(i - begin))->mutable_request_range()->set_revision(revision);
    }
    TxnResponse response;
    TANDEM_RETURN_IF_ERROR(Call("KV/Txn", txn, &response));
    if (static_cast<size_t>(response.responses_size()) != end - begin) {
      return absl::InternalError(absl::StrCat(address(), ": a transaction of ", end - begin, " reads got ",
                                              response.responses_size(), " answers"));
    }
    if (revision == 0) revision = response.header().revision();
    for (size_t i = begin; i < end; ++i) {
      RangeResponse* range =
          response.mutable_responses(static_cast<int>(i - begin))->mutable_response_range();
      if (range->kvs_size() == 0) {
        missing->push_back(keys[i]);
      } else if (values != nullptr) {
        bytes += range->kvs(0).value().size();
        values->push_back(std::move(*range->mutable_kvs(0)->mutable_value()));
      }
    }
  }
  return values == nullptr ? absl::OkStatus() : ValidateStoreBatch(keys.size(), bytes);
}

absl::Status EtcdStore::WaitForKeys(absl::Span<const std::string> keys, absl::Duration timeout,
                                    std::vector<std::string>* values) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKeys(keys));
  timeout = BoundedWait(timeout);
  const absl::Time deadline = MonotonicNow() + timeout;
  std::vector<std::string> missing;
  TANDEM_RETURN_IF_ERROR(ReadKeys(keys, &missing, values));
  if (missing.empty()) return absl::OkStatus();
  if (timeout > absl::ZeroDuration()) {
    std::vector<std::string> etcd_keys;
    for (const std::string& key : keys) etcd_keys.push_back(Key(key));
    EtcdWatcher::Waiter waiter(&watcher_, std::move(etcd_keys), /*prefix=*/false);
    while (true) {
      TANDEM_RETURN_IF_ERROR(ReadKeys(keys, &missing, values));
      if (missing.empty()) return absl::OkStatus();
      if (MonotonicNow() >= deadline) break;
      waiter.Await(deadline);
    }
  }
  return Annotate(KeysMissing(missing, timeout), absl::StrCat("store at ", address()));
}

absl::StatusOr<std::string> EtcdStore::Get(absl::string_view key, absl::Duration timeout) {
  std::vector<std::string> values;
  TANDEM_RETURN_IF_ERROR(WaitForKeys({std::string(key)}, timeout, &values));
  return std::move(values[0]);
}

absl::Status EtcdStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  return WaitForKeys(keys, timeout, nullptr);
}

absl::StatusOr<bool> EtcdStore::Check(absl::Span<const std::string> keys) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKeys(keys));
  std::vector<std::string> missing;
  TANDEM_RETURN_IF_ERROR(ReadKeys(keys, &missing, nullptr));
  return missing.empty();
}

absl::StatusOr<std::vector<std::string>> EtcdStore::MultiGet(absl::Span<const std::string> keys,
                                                             absl::Duration timeout) {
  std::vector<std::string> values;
  TANDEM_RETURN_IF_ERROR(WaitForKeys(keys, timeout, &values));
  return values;
}

absl::StatusOr<std::vector<std::string>> EtcdStore::List(absl::string_view prefix) {
  RangeRequest request;
  request.set_key(Key(prefix));
  request.set_range_end(EtcdRangeEnd(Key(prefix)));
  request.set_keys_only(true);
  request.set_sort_order(RangeRequest::ASCEND);
  RangeResponse response;
  TANDEM_RETURN_IF_ERROR(Call("KV/Range", request, &response));
  std::vector<std::string> keys;
  const size_t skip = Key("").size();
  for (const mvccpb::KeyValue& kv : response.kvs()) keys.push_back(kv.key().substr(skip));
  return keys;
}

absl::StatusOr<int64_t> EtcdStore::NumKeys() {
  RangeRequest request;
  request.set_key(Key(""));
  request.set_range_end(EtcdRangeEnd(Key("")));
  request.set_count_only(true);
  RangeResponse response;
  TANDEM_RETURN_IF_ERROR(Call("KV/Range", request, &response));
  return response.count();
}

absl::Status EtcdStore::Push(absl::string_view queue, absl::string_view value) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(queue));
  TANDEM_RETURN_IF_ERROR(ValidateStoreValue(queue, value));
  return Apply("", 0, {Put(QueuePrefix(queue) + RandomName(), value)}).status();
}

absl::StatusOr<std::string> EtcdStore::Pop(absl::string_view queue, absl::Duration timeout) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(queue));
  timeout = BoundedWait(timeout);
  const absl::Time deadline = MonotonicNow() + timeout;
  RangeRequest first;
  first.set_key(QueuePrefix(queue));
  first.set_range_end(EtcdRangeEnd(QueuePrefix(queue)));
  first.set_limit(1);
  first.set_sort_target(RangeRequest::CREATE);
  first.set_sort_order(RangeRequest::ASCEND);
  absl::optional<EtcdWatcher::Waiter> waiter;
  while (true) {
    RangeResponse response;
    TANDEM_RETURN_IF_ERROR(Call("KV/Range", first, &response));
    if (response.kvs_size() > 0) {
      mvccpb::KeyValue* item = response.mutable_kvs(0);
      TANDEM_ASSIGN_OR_RETURN(const bool mine,
                              Apply(item->key(), item->mod_revision(), {DeleteOp(item->key())}));
      if (mine) return std::move(*item->mutable_value());
      continue;  // another popper has it
    }
    if (MonotonicNow() >= deadline) break;
    if (!waiter.has_value()) {
      waiter.emplace(&watcher_, std::vector<std::string>{QueuePrefix(queue)}, /*prefix=*/true);
    } else {
      waiter->Await(deadline);
    }
  }
  return Annotate(QueueEmpty(queue, timeout), absl::StrCat("store at ", address()));
}

absl::StatusOr<int64_t> EtcdStore::Length(absl::string_view queue) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(queue));
  RangeRequest request;
  request.set_key(QueuePrefix(queue));
  request.set_range_end(EtcdRangeEnd(QueuePrefix(queue)));
  request.set_count_only(true);
  RangeResponse response;
  TANDEM_RETURN_IF_ERROR(Call("KV/Range", request, &response));
  return response.count();
}

}  // namespace tandem::cluster

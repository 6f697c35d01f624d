// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/etcd/etcd_client.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "etcd/rpc.pb.h"
#include "rpc/address.h"

namespace tandem::cluster {
namespace {

constexpr char kForm[] =
    "; expected 'etcd://host:port[,host:port]/prefix', with ?ca=FILE&cert=FILE&key=FILE for TLS";

// How much longer an attempt lasts if there is no other member to ask.
constexpr int kPatience = 4;

absl::StatusOr<std::string> ReadPem(absl::string_view path) {
  absl::StatusOr<std::string> text = ReadFile(std::string(path));
  if (!text.ok()) return Annotate(text.status(), "the PEM file");
  if (text->empty()) return absl::InvalidArgumentError(absl::StrCat("the PEM file '", path, "' is empty"));
  return text;
}

// Returns true if another member, or another attempt, may succeed. A member that gives up at the call's
// deadline reports Unknown. If this process is the slower one, that arrives before its own DeadlineExceeded.
bool MayRetry(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status) ||
         (absl::IsUnknown(status) && (absl::StrContains(status.message(), "context deadline exceeded") ||
                                      absl::StrContains(status.message(), "context canceled")));
}

bool TokenRefused(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::StrContains(status.message(), "invalid auth token");
}

}  // namespace

absl::StatusOr<EtcdOptions> ParseEtcdUrl(absl::string_view url) {
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("store '", url, "': ", why, kForm));
  };
  EtcdOptions options;
  absl::string_view rest = url;
  if (absl::ConsumePrefix(&rest, "etcds://")) {
    options.tls.emplace();
  } else if (!absl::ConsumePrefix(&rest, "etcd://")) {
    return bad("is no etcd store");
  }
  absl::string_view query;
  if (const size_t mark = rest.find('?'); mark != rest.npos) {
    query = rest.substr(mark + 1);
    rest = rest.substr(0, mark);
  }
  if (const size_t at = rest.substr(0, rest.find('/')).find('@'); at != rest.npos) {
    options.user = std::string(rest.substr(0, at));
    if (absl::StrContains(options.user, ':'))
      return bad("a password does not belong into a URL; set TANDEM_ETCD_PASSWORD");
    if (const char* password = std::getenv("TANDEM_ETCD_PASSWORD"); password != nullptr)
      options.password = password;
    rest = rest.substr(at + 1);
  }
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(rest, absl::MaxSplits('/', 1));
  for (absl::string_view endpoint : absl::StrSplit(parts.first, ',')) {
    absl::StatusOr<rpc::Address> address = rpc::ParseAddress(endpoint);
    if (!address.ok() || address->is_unix() || address->port == 0) {
      return bad(absl::StrCat("'", endpoint, "' is no host:port"));
    }
    options.endpoints.emplace_back(endpoint);
  }
  if (const absl::string_view prefix = absl::StripSuffix(parts.second, "/"); !prefix.empty()) {
    options.prefix = std::string(prefix);
  }
  for (absl::string_view part : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    double seconds = 0;
    if (pair.first == "lease" && absl::SimpleAtod(pair.second, &seconds) && seconds >= 1 && seconds <= 1e6) {
      options.lease = absl::Seconds(seconds);
      continue;
    }
    if (pair.first != "ca" && pair.first != "cert" && pair.first != "key" && pair.first != "name") {
      return bad(absl::StrCat("'", part, "' is none of ca=, cert=, key=, name=, lease=SECONDS (at least 1)"));
    }
    if (!options.tls.has_value()) options.tls.emplace();
    if (pair.first == "name") {
      options.tls->server_name = std::string(pair.second);
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(std::string pem, ReadPem(pair.second));
    (pair.first == "ca"     ? options.tls->ca
     : pair.first == "cert" ? options.tls->certificate
                            : options.tls->key) = std::move(pem);
  }
  return options;
}

EtcdClient::EtcdClient(EtcdOptions options) : options_(std::move(options)) {
  address_ = absl::StrCat("etcd://", absl::StrJoin(options_.endpoints, ","), "/", options_.prefix);
}

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Connect(EtcdOptions options) {
  if (options.endpoints.empty())
    return absl::InvalidArgumentError("an etcd store needs the address of a member");
  std::unique_ptr<EtcdClient> client(new EtcdClient(std::move(options)));
  rpc::GenericGrpcClientOptions connect;
  connect.tls = client->options_.tls;
  for (const std::string& endpoint : client->options_.endpoints) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::GenericGrpcClient> member,
                            rpc::GenericGrpcClient::Connect(endpoint, connect));
    client->members_.push_back(std::move(member));
  }
  return client;
}

absl::StatusOr<rpc::Headers> EtcdClient::Authenticated(size_t member, bool renew) {
  if (options_.user.empty()) return rpc::Headers{};
  {
    absl::MutexLock lock(&mutex_);
    if (!token_.empty() && !renew) return rpc::Headers{{"token", token_}};
  }
  etcdserverpb::AuthenticateRequest request;
  request.set_name(options_.user);
  request.set_password(options_.password);
  TANDEM_ASSIGN_OR_RETURN(const std::string answer,
                          members_[member]->Call("/etcdserverpb.Auth/Authenticate",
                                                 request.SerializeAsString(), {}, absl::Seconds(5)));
  etcdserverpb::AuthenticateResponse response;
  if (!response.ParseFromString(answer))
    return absl::InternalError("etcd's answer to Authenticate is not understood");
  absl::MutexLock lock(&mutex_);
  token_ = response.token();
  return rpc::Headers{{"token", token_}};
}

void EtcdClient::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

void EtcdClient::AvoidMember(size_t member) {
  absl::MutexLock lock(&mutex_);
  if (current_ == member) current_ = (member + 1) % members_.size();
}

absl::Status EtcdClient::Call(absl::string_view method, const google::protobuf::MessageLite& request,
                              google::protobuf::MessageLite* response, absl::Duration timeout,
                              bool* repeated) {
  const std::string name = absl::StrCat("/etcdserverpb.", method);
  const std::string bytes = request.SerializeAsString();
  const absl::Time deadline = MonotonicNow() + timeout;
  // A member that does not respond leaves time for another one. Large values need more time.
  const absl::Duration attempt_timeout = absl::Seconds(2) + absl::Milliseconds(bytes.size() / 10000);
  bool renew = false;
  int renewed = 0;
  absl::Duration pause = absl::Milliseconds(20);
  absl::Status last;
  for (int attempt = 0;; ++attempt) {
    size_t member;
    {
      absl::MutexLock lock(&mutex_);
      if (stopped_) return absl::CancelledError(absl::StrCat(address_, ": the store was closed"));
      member = current_;
    }
    const absl::Duration left = deadline - MonotonicNow();
    if (attempt > 0 && left <= absl::ZeroDuration()) break;
    absl::StatusOr<rpc::Headers> headers = Authenticated(member, renew);
    renew = false;
    const absl::Duration each = std::min(left, attempt_timeout * (members_.size() > 1 ? 1 : kPatience));
    absl::StatusOr<std::string> answer =
        headers.ok() ? members_[member]->Call(name, bytes, *headers, std::max(absl::Milliseconds(50), each))
                     : absl::StatusOr<std::string>(headers.status());
    if (answer.ok()) {
      if (response->ParseFromString(*answer)) return absl::OkStatus();
      return absl::InternalError(absl::StrCat(address_, ": the answer to ", method, " is not understood"));
    }
    last = answer.status();
    if (TokenRefused(last) && !options_.user.empty() && renewed++ == 0) {
      renew = true;
      continue;
    }
    if (!MayRetry(last)) return Annotate(last, address_);
    if (repeated != nullptr) *repeated = true;
    AvoidMember(member);
    absl::MutexLock lock(&mutex_);
    (void)AwaitFor(&mutex_, absl::Condition(&stopped_),
                   std::min(pause, std::max(left, absl::ZeroDuration())));
    pause = std::min(pause * 2, absl::Milliseconds(500));
  }
  return absl::UnavailableError(absl::StrCat(address_, " did not answer ", method, " within ",
                                             absl::FormatDuration(timeout), " (", last.message(), ")"));
}

absl::StatusOr<std::unique_ptr<rpc::ResponseStream>> EtcdClient::Watch(
    const std::string& key, const std::string& range_end, std::function<void(std::string)> on_response,
    std::function<void(absl::Status)> on_end) {
  size_t member;
  {
    absl::MutexLock lock(&mutex_);
    member = current_;
  }
  TANDEM_ASSIGN_OR_RETURN(const rpc::Headers headers, Authenticated(member, false));
  etcdserverpb::WatchRequest request;
  request.mutable_create_request()->set_key(key);
  request.mutable_create_request()->set_range_end(range_end);
  return members_[member]->OpenStream("/etcdserverpb.Watch/Watch", request.SerializeAsString(), headers,
                                      std::move(on_response),
                                      [this, member, on_end = std::move(on_end)](absl::Status why) {
                                        AvoidMember(member);
                                        on_end(std::move(why));
                                      });
}

}  // namespace tandem::cluster

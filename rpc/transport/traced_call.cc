// SPDX-License-Identifier: Apache-2.0
#include "rpc/transport/traced_call.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/trace/recorder.h"
#include "rpc/transport/forwarding_call.h"

namespace tandem::rpc {
namespace {

constexpr char kCall[] = "call";
constexpr char kServe[] = "serve";
// The first bytes contain the header, with its step or sequence number.
constexpr size_t kHashed = 256;

// Returns "tandem.v1.ParameterServer/Pull" for "/tandem.v1.ParameterServer/Pull".
absl::string_view ShownMethod(absl::string_view method) {
  return method.substr(method.empty() || method[0] != '/' ? 0 : 1);
}

void RecordHalf(absl::string_view method, const char* category, uint64_t begin, uint64_t flow,
                trace::Flow::End end, size_t bytes) {
  trace::Recorder* const recorder = trace::Active();
  if (recorder == nullptr) return;
  trace::End(recorder->Intern(ShownMethod(method), category, "bytes"), begin, {flow, end},
             static_cast<int64_t>(bytes));
}

// A server call that is recorded.
class TracedServerCall : public ForwardingCall {
 public:
  TracedServerCall(std::shared_ptr<ServerCall> call, std::shared_ptr<const std::string> method,
                   uint64_t begin)
      : ForwardingCall(std::move(call)),
        method_(std::move(method)),
        begin_(begin),
        flow_(CallFlow(*method_, request())),
        bytes_(request().size()) {}

 private:
  // Recorded before the response is sent: the client's event may end as soon as it is.
  void OnFinish(size_t) override {
    RecordHalf(*method_, kServe, begin_, flow_, trace::Flow::End::kReceives, bytes_);
  }

  const std::shared_ptr<const std::string> method_;
  const uint64_t begin_;
  const uint64_t flow_;
  const size_t bytes_;
};

}  // namespace

uint64_t CallFlow(absl::string_view method, const Bytes& request) {
  char first[kHashed];
  const size_t size = std::min(request.size(), kHashed);
  BytesReader(request).Copy(first, size);
  const uint64_t hash = HashBytes({first, size}, HashBytes(method, request.size()));
  return hash == 0 ? 1 : hash;
}

void CallTrace::Record(absl::string_view method, size_t request_bytes) const {
  RecordHalf(method, kCall, begin_, flow_, trace::Flow::End::kSends, request_bytes);
}

Service Traced(Service service) {
  for (Method& method : service.methods) {
    auto path = std::make_shared<const std::string>(absl::StrCat("/", service.name, "/", method.name));
    method.handler = [path, handler = std::move(method.handler)](std::shared_ptr<ServerCall> call) {
      if (const uint64_t begin = trace::Begin(); ABSL_PREDICT_FALSE(begin != 0)) {
        call = std::make_shared<TracedServerCall>(std::move(call), path, begin);
      }
      handler(std::move(call));
    };
  }
  return service;
}

}  // namespace tandem::rpc

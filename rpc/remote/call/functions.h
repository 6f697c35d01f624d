#ifndef TANDEM_RPC_REMOTE_CALL_FUNCTIONS_H_
#define TANDEM_RPC_REMOTE_CALL_FUNCTIONS_H_

// What a worker serves.
//
//   Functions functions;
//   functions.Add(kMatMul, [](Tensor a, Tensor b) -> absl::StatusOr<Tensor> { ... });
//
// A function takes what is declared, and before that, if it likes, a `const Context&`. It returns what is
// declared, a StatusOr of it, a unique_ptr to it, or a Future of it, which answers later and holds no thread
// meanwhile.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "rpc/remote/call/batcher.h"
#include "rpc/remote/call/function.h"
#include "rpc/remote/call/invocation.h"
#include "rpc/remote/call/runtime.h"
#include "rpc/remote/call/serve.h"

namespace tandem::rpc::remote {

struct ServeOptions {
  // On the RPC thread, which spares a change of threads: for functions of a few microseconds that never
  // block.
  bool run_inline = false;
  // Functions of the same group, if it has a name, run one at a time in this worker.
  std::string exclusive = "";
};

// Filled by one thread, then given to an Agent.
class Functions {
 public:
  struct Entry {
    FunctionId id;
    ServeOptions options;
    // Takes the call, on an RPC thread, if it is inline, else on one of the executor's.
    std::function<void(Runtime&, const std::shared_ptr<Invocation>&)> run;
  };

  Functions() = default;
  Functions(Functions&&) = default;
  Functions& operator=(Functions&&) = default;

  // `body` may be called by several threads at a time, unless it is exclusive. A name can be added once.
  template <typename R, typename... Args, typename Body>
  Functions& Add(const Function<R(Args...)>& function, Body body, ServeOptions options = {}) {
    auto shared = std::make_shared<Body>(std::move(body));
    return AddEntry(
        {function.id(), std::move(options), [shared](Runtime&, const std::shared_ptr<Invocation>& call) {
           internal::Serve<R, Args...>(*shared, call);
         }});
  }

  // `body` gets a batch of arguments, a std::vector<std::tuple<Args...>>, and returns as many StatusOr<R>, or
  // an error for all. Callers call `function` one by one.
  template <typename R, typename... Args, typename Body>
  Functions& AddBatched(const Function<R(Args...)>& function, Body body, BatchOptions options = {}) {
    CheckOptions(function.name(), options);
    auto batcher = std::make_shared<Batcher<R, Args...>>(function.name(), std::move(body), options);
    return AddEntry({function.id(),
                     {.run_inline = true},
                     [batcher](Runtime& runtime, const std::shared_ptr<Invocation>& call) {
                       batcher->Add(runtime, call);
                     }});
  }

  Functions& AddEntry(Entry entry);

  const Entry* Find(absl::string_view name) const;
  std::vector<std::string> names() const;  // sorted, without our own

 private:
  static void CheckOptions(absl::string_view function, const BatchOptions& options);

  absl::flat_hash_map<std::string, Entry> entries_;
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_FUNCTIONS_H_

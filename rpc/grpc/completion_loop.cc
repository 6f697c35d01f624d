#include "rpc/grpc/completion_loop.h"

namespace tandem::rpc {

void CompletionLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void CompletionLoop::Stop() {
  if (stopped_) return;
  stopped_ = true;
  queue_->Shutdown();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    Run();  // a queue must be empty before it goes
  }
}

void CompletionLoop::Run() {
  void* tag;
  bool ok;
  while (queue_->Next(&tag, &ok)) static_cast<CompletionTag*>(tag)->OnEvent(ok);
}

}  // namespace tandem::rpc

#include "rpc/grpc/grpc_library.h"

#include "grpc/grpc.h"

namespace tandem::rpc {

void KeepGrpcLibrary() {
  [[maybe_unused]] static const bool kept = [] {
    grpc_init();
    return true;
  }();
}

}  // namespace tandem::rpc

// SPDX-License-Identifier: Apache-2.0
// Used in ThreadSanitizer builds only, together with tsan_absl.cc. An operation is over when a completion
// queue returns its tag. The synchronisation for this is inside gRPC, which is not instrumented, while the
// inline functions of its headers are. Without these definitions TSAN would report races between them in
// every call. The definitions replace the library's and tell TSAN about this order, both for queues of Tandem
// and for the library's own, whose threads run callbacks.
//
// The reference count of a slice orders the readers of a buffer and the thread that frees it. Both drop their
// references by the inline destructor of grpc::Slice. The library leaves it by a jump to free(), which then
// seems to be called by our code.

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>

#include <cstdint>

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t nops, void* tag,
                                      void* reserved) {
  static const auto real =
      reinterpret_cast<decltype(&grpc_call_start_batch)>(dlsym(RTLD_NEXT, "grpc_call_start_batch"));
  if (tag != nullptr) __tsan_release(tag);
  return real(call, ops, nops, tag, reserved);
}

grpc_call_error grpc_server_request_call(grpc_server* server, grpc_call** call, grpc_call_details* details,
                                         grpc_metadata_array* request_metadata,
                                         grpc_completion_queue* bound_to, grpc_completion_queue* notified,
                                         void* tag) {
  static const auto real =
      reinterpret_cast<decltype(&grpc_server_request_call)>(dlsym(RTLD_NEXT, "grpc_server_request_call"));
  if (tag != nullptr) __tsan_release(tag);
  return real(server, call, details, request_metadata, bound_to, notified, tag);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  static const auto real =
      reinterpret_cast<decltype(&grpc_completion_queue_next)>(dlsym(RTLD_NEXT, "grpc_completion_queue_next"));
  const grpc_event event = real(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE && event.tag != nullptr) __tsan_acquire(event.tag);
  return event;
}

void grpc_slice_unref(grpc_slice slice) {
  static const auto real =
      reinterpret_cast<decltype(&grpc_slice_unref)>(dlsym(RTLD_NEXT, "grpc_slice_unref"));
  // The values 0 and 1 stand for slices without a count.
  if (reinterpret_cast<uintptr_t>(slice.refcount) > 1) {
    __tsan_release(slice.refcount);
    __tsan_acquire(slice.refcount);
  }
  real(slice);
}

}  // extern "C"

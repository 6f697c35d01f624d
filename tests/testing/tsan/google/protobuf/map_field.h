// SPDX-License-Identifier: Apache-2.0
// Used in ThreadSanitizer builds only, instead of protobuf's own header. In such builds protobuf adds two
// members to map fields, to find races. Debian's library is built without them and would read messages at the
// wrong offsets.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

// The standard library is included before, because it needs the macro.
#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include_next <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")

// Only in ThreadSanitizer builds, where it stands before protobuf's own. There protobuf gives map fields two
// more members to find races with; Debian's library is built without them and would read our messages at the
// wrong places.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

// Not for the standard library, which has to know.
#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include_next <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")

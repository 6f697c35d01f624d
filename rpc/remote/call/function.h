// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CALL_FUNCTION_H_
#define TANDEM_RPC_REMOTE_CALL_FUNCTION_H_

// The declaration of a remote function. Caller and callee share it in a header of their own.
//
//   inline constexpr Function<Tensor(Tensor, Tensor)> kMatMul{"matmul", {.idempotent = true}};

#include <cstdint>
#include <initializer_list>
#include <string>
#include <tuple>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/random.h"
#include "rpc/remote/call/codec.h"

namespace tandem::rpc::remote {

struct FunctionTraits {
  // Two calls have the same effect as one. The agent may then repeat a call, with backoff, while the
  // connection fails and the call's deadline has not passed.
  bool idempotent = false;
};

// The result of a call of a function that returns R: absl::StatusOr<R>, or absl::Status for void.
template <typename R>
struct ResultOfType {
  using type = absl::StatusOr<R>;
};
template <>
struct ResultOfType<void> {
  using type = absl::Status;
};
template <typename R>
using ResultOf = typename ResultOfType<R>::type;

namespace internal {

// Stands for void where a value is needed.
struct Unit {
  static constexpr absl::string_view kRemoteName = "void";
};
template <typename R>
using ValueOf = std::conditional_t<std::is_void_v<R>, Unit, R>;

// Returns the 64-bit FNV-1a hash of `text`: the same in every process.
constexpr uint64_t HashText(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// The types of a function as text, "(tensor, i64) -> tensor", and the hash of that text. Created once for
// each function type, at the first use.
struct TypesText {
  std::string text;
  uint64_t hash;
};
TypesText MakeTypesText(std::initializer_list<std::string> arguments, const std::string& result);
template <typename R, typename... Args>
const TypesText& TypesOf() {
  static const TypesText types = MakeTypesText({TypeName<Args>()...}, TypeName<R>());
  return types;
}

}  // namespace internal

// Identifies a function to both sides of a call. Two declarations are the same function if their names and
// fingerprints are equal.
struct FunctionId {
  absl::string_view name;
  const internal::TypesText* types = nullptr;
  bool idempotent = false;

  uint64_t fingerprint() const { return Mix64(internal::HashText(name), types->hash); }
  // "matmul(tensor, tensor) -> tensor"
  std::string signature() const { return absl::StrCat(name, types->text); }
};

template <typename Signature>
class Function;

// Declares a function with a name and types. A literal type: declare it constexpr. `name` must outlive it.
template <typename R, typename... Args>
class Function<R(Args...)> {
 public:
  static_assert((std::is_same_v<Args, std::remove_cvref_t<Args>> && ...),
                "arguments are values: write T, not const T&");
  using Result = R;
  using Arguments = std::tuple<Args...>;

  constexpr explicit Function(const char* name, FunctionTraits traits = {}) : name_(name), traits_(traits) {}

  constexpr absl::string_view name() const { return name_; }
  FunctionId id() const { return {name_, &internal::TypesOf<R, Args...>(), traits_.idempotent}; }
  // "matmul(tensor, tensor) -> tensor"
  std::string signature() const { return id().signature(); }

 private:
  const absl::string_view name_;
  const FunctionTraits traits_;
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_FUNCTION_H_

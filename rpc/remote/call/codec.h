// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CALL_CODEC_H_
#define TANDEM_RPC_REMOTE_CALL_CODEC_H_

// The C++ types that remote functions take and return, their names in signatures, and their encoding.
//
//   bool, int32_t, int64_t, uint32_t, uint64_t, float, double, std::string, Tensor, protobuf messages,
//   std::vector<T>, std::map<K, V>, absl::flat_hash_map<K, V>, std::optional<T>, std::pair<A, B>, RRef<T>,
//   and structs of these that list their fields:
//
//   struct Range {
//     int64_t begin = 0, end = 0;
//     TANDEM_REMOTE_FIELDS(Range, begin, end)
//   };
//
// A class whose objects are never sent (parameter servers, models) needs only a name, for RRefs to it:
//
//   class Model { ... public: TANDEM_REMOTE_CLASS(Model) };

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/message.h"
#include "rpc/remote/call/wire.h"
#include "rpc/wire/bytes_stream.h"

// Lists the fields of a struct for the codec. Caller and callee treat two structs as the same type if their
// names, their fields' names and their fields' types are equal. A struct cannot contain itself.
#define TANDEM_REMOTE_FIELDS(Type, ...)                               \
  static constexpr absl::string_view kRemoteName = #Type;             \
  static constexpr absl::string_view kRemoteFields = "" #__VA_ARGS__; \
  auto RemoteTie() { return std::tie(__VA_ARGS__); }                  \
  auto RemoteTie() const { return std::tie(__VA_ARGS__); }

// Names a class that is not sent.
#define TANDEM_REMOTE_CLASS(Type) static constexpr absl::string_view kRemoteName = #Type;

namespace tandem::rpc::remote {

// Encodes and decodes values of type T. A specialization has these static members:
//
//   std::string Name();                      // the type's name in signatures
//   void Encode(Writer& writer, const T& value);
//   bool Decode(Reader& reader, T* value);   // false: `reader` has an error
//
// Every value must occupy at least one byte, so that counts of elements can be checked.
template <typename T>
struct Codec;

// Types that have a codec.
template <typename T>
concept Sendable = requires(Writer& writer, Reader& reader, const T& value, T* out) {
  Codec<T>::Encode(writer, value);
  { Codec<T>::Decode(reader, out) } -> std::same_as<bool>;
};

// Returns a type's name in signatures: that of its codec, or of a class that is not sent.
template <typename T>
std::string TypeName() {
  if constexpr (std::is_void_v<T>) {
    return "void";
  } else if constexpr (Sendable<T>) {
    return Codec<T>::Name();
  } else {
    return std::string(T::kRemoteName);
  }
}

namespace internal {

template <typename T>
struct NumberCodec {
  static void Encode(Writer& writer, const T& value) {
    if constexpr (std::is_floating_point_v<T>) {
      writer.Raw(&value, sizeof(T));
    } else if constexpr (std::is_signed_v<T>) {
      writer.Signed(value);
    } else {
      writer.Varint(value);
    }
  }
  static bool Decode(Reader& reader, T* value) {
    if constexpr (std::is_floating_point_v<T>) {
      return reader.Raw(value, sizeof(T));
    } else if constexpr (std::is_signed_v<T>) {
      int64_t wide;
      if (!reader.Signed(&wide)) return false;
      *value = static_cast<T>(wide);
      return static_cast<int64_t>(*value) == wide || OutOfRange(reader);
    } else {
      uint64_t wide;
      if (!reader.Varint(&wide)) return false;
      *value = static_cast<T>(wide);
      return static_cast<uint64_t>(*value) == wide || OutOfRange(reader);
    }
  }
  static bool OutOfRange(Reader& reader) {
    return reader.Fail(
        absl::InvalidArgumentError("a number in the encoded value is out of its type's range"));
  }
};

template <typename Map>
struct MapCodec {
  using K = typename Map::key_type;
  using V = typename Map::mapped_type;
  static std::string Name() { return absl::StrCat("map<", TypeName<K>(), ", ", TypeName<V>(), ">"); }
  static void Encode(Writer& writer, const Map& map) {
    writer.Varint(map.size());
    for (const auto& [key, value] : map) {
      Codec<K>::Encode(writer, key);
      Codec<V>::Encode(writer, value);
    }
  }
  static bool Decode(Reader& reader, Map* map) {
    size_t count;
    if (!reader.Count(1, &count)) return false;
    map->clear();
    for (size_t i = 0; i < count; ++i) {
      std::pair<K, V> entry{};
      if (!Codec<K>::Decode(reader, &entry.first) || !Codec<V>::Decode(reader, &entry.second)) return false;
      map->insert(std::move(entry));
    }
    return true;
  }
};

}  // namespace internal

#define TANDEM_REMOTE_NUMBER_(Type, kName)           \
  template <>                                        \
  struct Codec<Type> : internal::NumberCodec<Type> { \
    static std::string Name() { return kName; }      \
  };
TANDEM_REMOTE_NUMBER_(bool, "bool")
TANDEM_REMOTE_NUMBER_(int32_t, "i32")
TANDEM_REMOTE_NUMBER_(int64_t, "i64")
TANDEM_REMOTE_NUMBER_(uint32_t, "u32")
TANDEM_REMOTE_NUMBER_(uint64_t, "u64")
TANDEM_REMOTE_NUMBER_(float, "f32")
TANDEM_REMOTE_NUMBER_(double, "f64")
#undef TANDEM_REMOTE_NUMBER_

template <>
struct Codec<std::string> {
  static std::string Name() { return "string"; }
  static void Encode(Writer& writer, const std::string& value) { writer.String(absl::string_view(value)); }
  static bool Decode(Reader& reader, std::string* value) { return reader.String(value); }
};

template <>
struct Codec<Tensor> {
  static std::string Name() { return "tensor"; }
  static void Encode(Writer& writer, const Tensor& value) { writer.WriteTensor(value); }
  static bool Decode(Reader& reader, Tensor* value) { return reader.ReadTensor(value); }
};

template <std::derived_from<google::protobuf::Message> T>
struct Codec<T> {
  static std::string Name() { return T::descriptor()->full_name(); }
  static void Encode(Writer& writer, const T& value) {
    std::string text;
    if (value.SerializeToString(&text)) return writer.String(std::move(text));
    writer.Fail(absl::ResourceExhaustedError(absl::StrCat(
        "a ", T::descriptor()->full_name(), " of ", value.ByteSizeLong(),
        " bytes cannot be serialised: protobuf's limit is 2147483647; send what is large in it as tensors")));
  }
  static bool Decode(Reader& reader, T* value) {
    std::string text;
    if (!reader.String(&text)) return false;
    return value->ParseFromString(text) || reader.Fail(absl::InvalidArgumentError(absl::StrCat(
                                               "an argument is no ", T::descriptor()->full_name())));
  }
};

template <typename T>
requires(!std::is_pointer_v<T>) struct Codec<std::vector<T>> {
  static constexpr bool kNumbers = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;
  static std::string Name() { return absl::StrCat("list<", TypeName<T>(), ">"); }
  static void Encode(Writer& writer, const std::vector<T>& values) {
    writer.Varint(values.size());
    if constexpr (kNumbers) {
      const size_t bytes = values.size() * sizeof(T);
      if (bytes < kBulkBytes) return writer.Raw(values.data(), bytes);
      return writer.Bulk(Bytes(std::string(reinterpret_cast<const char*>(values.data()), bytes)));
    } else {
      for (const T& value : values) Codec<T>::Encode(writer, value);
    }
  }
  static bool Decode(Reader& reader, std::vector<T>* values) {
    size_t count;
    if (!reader.Count(kNumbers ? sizeof(T) : 1, &count)) return false;
    values->clear();
    if constexpr (kNumbers) {
      values->resize(count);
      const size_t bytes = count * sizeof(T);
      if (bytes < kBulkBytes) return reader.Raw(values->data(), bytes);
      Bytes bulk;
      if (!reader.Bulk(bytes, &bulk)) return false;
      return BytesReader(bulk).Copy(values->data(), bytes);
    } else {
      for (size_t i = 0; i < count; ++i) {
        T value{};
        if (!Codec<T>::Decode(reader, &value)) return false;
        values->push_back(std::move(value));
      }
      return true;
    }
  }
};

template <typename K, typename V>
struct Codec<std::map<K, V>> : internal::MapCodec<std::map<K, V>> {};
template <typename K, typename V>
struct Codec<absl::flat_hash_map<K, V>> : internal::MapCodec<absl::flat_hash_map<K, V>> {};

template <typename T>
struct Codec<std::optional<T>> {
  static std::string Name() { return absl::StrCat("optional<", TypeName<T>(), ">"); }
  static void Encode(Writer& writer, const std::optional<T>& value) {
    writer.Varint(value.has_value());
    if (value.has_value()) Codec<T>::Encode(writer, *value);
  }
  static bool Decode(Reader& reader, std::optional<T>* value) {
    bool there;
    if (!Codec<bool>::Decode(reader, &there)) return false;
    if (!there) {
      value->reset();
      return true;
    }
    return Codec<T>::Decode(reader, &value->emplace());
  }
};

template <typename A, typename B>
struct Codec<std::pair<A, B>> {
  static std::string Name() { return absl::StrCat("pair<", TypeName<A>(), ", ", TypeName<B>(), ">"); }
  static void Encode(Writer& writer, const std::pair<A, B>& value) {
    Codec<A>::Encode(writer, value.first);
    Codec<B>::Encode(writer, value.second);
  }
  static bool Decode(Reader& reader, std::pair<A, B>* value) {
    return Codec<A>::Decode(reader, &value->first) && Codec<B>::Decode(reader, &value->second);
  }
};

template <typename T>
requires requires { T::kRemoteFields; }
struct Codec<T> {
  static std::string Name() {
    const std::vector<absl::string_view> names = absl::StrSplit(T::kRemoteFields, ',', absl::SkipEmpty());
    std::string text = absl::StrCat(T::kRemoteName, "{");
    size_t i = 0;
    std::apply(
        [&](auto&... fields) {
          ((absl::StrAppend(&text, i == 0 ? "" : ", ", absl::StripAsciiWhitespace(names[i]), ": ",
                            TypeName<std::remove_cvref_t<decltype(fields)>>()),
            ++i),
           ...);
        },
        T().RemoteTie());
    return text + "}";
  }
  static void Encode(Writer& writer, const T& value) {
    std::apply(
        [&writer](const auto&... fields) {
          if constexpr (sizeof...(fields) == 0)
            // Every value occupies at least one byte, so that counts can be checked.
            writer.Varint(0);
          (Codec<std::remove_cvref_t<decltype(fields)>>::Encode(writer, fields), ...);
        },
        value.RemoteTie());
  }
  static bool Decode(Reader& reader, T* value) {
    return std::apply(
        [&reader](auto&... fields) {
          uint64_t zero;
          if (sizeof...(fields) == 0 && !reader.Varint(&zero)) return false;
          return (Codec<std::remove_cvref_t<decltype(fields)>>::Decode(reader, &fields) && ...);
        },
        value->RemoteTie());
  }
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_CODEC_H_

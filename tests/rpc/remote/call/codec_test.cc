// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/call/codec.h"

#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "rpc/remote/call/function.h"
#include "rpc/remote/call/tensor.h"
#include "tandem/v1/echo.pb.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::remote {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Point {
  float x = 0, y = 0;
  TANDEM_REMOTE_FIELDS(Point, x, y)
  friend bool operator==(const Point&, const Point&) = default;
};
struct Shape {
  std::string name;
  std::vector<Point> corners;
  std::optional<int64_t> colour;
  std::map<std::string, std::vector<double>> weights;
  TANDEM_REMOTE_FIELDS(Shape, name, corners, colour, weights)
  friend bool operator==(const Shape&, const Shape&) = default;
};
struct Empty {
  TANDEM_REMOTE_FIELDS(Empty)
  friend bool operator==(const Empty&, const Empty&) = default;
};
class Model {
 public:
  TANDEM_REMOTE_CLASS(Model)
};

template <typename T>
Encoded Encode(const T& value) {
  Writer writer;
  Codec<T>::Encode(writer, value);
  return writer.Take();
}

template <typename T>
absl::StatusOr<T> Decode(const Encoded& encoded) {
  T value{};
  Reader reader(encoded.small, encoded.bulk);
  if (Codec<T>::Decode(reader, &value) && reader.Finish()) return value;
  return reader.status();
}

template <typename T>
void ExpectComesBack(const T& value) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const T back, Decode<T>(Encode(value)));
  EXPECT_TRUE(back == value) << TypeName<T>();
}

TEST(CodecTest, ValuesComeBackAsTheyWere) {
  ExpectComesBack(true);
  for (const int64_t value : {int64_t{0}, int64_t{-1}, int64_t{63}, int64_t{-64}, int64_t{64},
                              std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    ExpectComesBack(value);
  }
  ExpectComesBack(std::numeric_limits<int32_t>::min());
  ExpectComesBack(std::numeric_limits<uint64_t>::max());
  ExpectComesBack(1.5f);
  ExpectComesBack(-0.1);
  for (const size_t size : {0, 1, 1023, 1024, 100000}) ExpectComesBack(std::string(size, 'x'));
  ExpectComesBack(std::vector<bool>{true, false, true});
  for (const size_t size : {0, 1, 255, 256, 100000}) ExpectComesBack(std::vector<float>(size, 2.5f));
  ExpectComesBack(std::vector<std::string>{"", "a", std::string(5000, 'b')});
  ExpectComesBack(std::pair<int32_t, std::string>(7, "seven"));
  ExpectComesBack(std::optional<double>());
  ExpectComesBack(absl::flat_hash_map<std::string, int64_t>{{"one", 1}, {"two", 2}});
  ExpectComesBack(Shape{"house", {{0, 1}, {2, 3}}, 17, {{"a", std::vector<double>(1000, 0.5)}, {"b", {}}}});
  ExpectComesBack(std::vector<Empty>(1000));
}

TEST(CodecTest, ProtobufMessagesAreValues) {
  v1::EchoMessage message;
  message.set_text("hello");
  for (int i = 0; i < 1000; ++i) message.add_numbers(i);
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::EchoMessage back, Decode<v1::EchoMessage>(Encode(message)));
  EXPECT_EQ(back.SerializeAsString(), message.SerializeAsString());
}

TEST(CodecTest, ATensorTravelsWithoutACopy) {
  const Tensor tensor = Tensor::Of(std::vector<float>(1000, 1.0f));
  const Encoded encoded = Encode(tensor);
  ASSERT_EQ(encoded.bulk.slices().size(), 1);
  EXPECT_EQ(encoded.bulk.slices()[0].data(), tensor.data());
  TANDEM_ASSERT_OK_AND_ASSIGN(const Tensor back, Decode<Tensor>(encoded));
  EXPECT_EQ(back.data(), tensor.data());
  EXPECT_EQ(back.ToString(), "f32[1000]");
}

TEST(CodecTest, TensorsAreAlignedBehindOddOnesAndPutTogetherFromPieces) {
  std::pair<Tensor, Tensor> tensors(Tensor::Of(std::vector<uint8_t>{1, 2, 3}),
                                    Tensor::Of(std::vector<double>{0.5, -2}));
  const Encoded encoded = Encode(tensors);
  // One byte at a time, as a network might deliver it.
  const std::string flat = encoded.bulk.Flatten();
  Encoded chunks{encoded.small, {}};
  for (const char c : flat) chunks.bulk.Append(Bytes(std::string(1, c)));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto back, (Decode<std::pair<Tensor, Tensor>>(chunks)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto first, back.first.values<uint8_t>());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto second, back.second.values<double>());
  EXPECT_THAT(first, ElementsAre(1, 2, 3));
  EXPECT_THAT(second, ElementsAre(0.5, -2));
}

TEST(TensorTest, WhoChangesASharedTensorGetsOneOfItsOwn) {
  Tensor one = Tensor::Of(std::vector<float>{1, 2});
  Tensor other = one;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto changed, other.mutable_values<float>());
  changed[0] = 5;
  EXPECT_THAT(*one.values<float>(), ElementsAre(1, 2));
  EXPECT_THAT(*other.values<float>(), ElementsAre(5, 2));
  // A tensor that is not shared is changed in place, and the new elements are sent.
  const void* before = other.data();
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto again, other.mutable_values<float>());
  again[1] = 6;
  EXPECT_EQ(other.data(), before);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Tensor back, Decode<Tensor>(Encode(other)));
  EXPECT_THAT(*back.values<float>(), ElementsAre(5, 6));
}

TEST(TensorTest, TheWrongElementTypeIsNamed) {
  const Tensor tensor = Tensor::Of(std::vector<int32_t>{1, 2});
  EXPECT_THAT(tensor.values<float>(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("i32[2], not of f32")));
}

TEST(SignatureTest, IsWhatAReaderExpects) {
  EXPECT_EQ((Function<Tensor(Tensor, Tensor)>("matmul").signature()), "matmul(tensor, tensor) -> tensor");
  EXPECT_EQ((Function<void(std::vector<int32_t>, std::map<std::string, float>)>("set").signature()),
            "set(list<i32>, map<string, f32>) -> void");
  EXPECT_EQ((Function<v1::EchoMessage(std::optional<Point>)>("f").signature()),
            "f(optional<Point{x: f32, y: f32}>) -> tandem.v1.EchoMessage");
  EXPECT_EQ((Function<Model(Empty)>("make").signature()), "make(Empty{}) -> Model");
  const Function<void(int32_t)> a("f");
  const Function<void(int64_t)> b("f");
  EXPECT_NE(a.id().fingerprint(), b.id().fingerprint());
}

TEST(CodecTest, WhatIsCutOffOrTooLongIsRefused) {
  const Shape shape{"house", {{0, 1}, {2, 3}}, 17, {{"a", std::vector<double>(1000, 0.5)}}};
  const Encoded encoded = Encode(shape);
  for (size_t size = 0; size < encoded.small.size(); ++size) {
    EXPECT_FALSE(Decode<Shape>({encoded.small.substr(0, size), encoded.bulk}).ok()) << size;
  }
  EXPECT_FALSE(Decode<Shape>({encoded.small + "x", encoded.bulk}).ok());
  EXPECT_FALSE(Decode<Shape>({encoded.small, encoded.bulk.Sub(0, encoded.bulk.size() - 1)}).ok());
  // A count that is larger than the message allocates nothing.
  EXPECT_FALSE(Decode<std::vector<double>>({"\xff\xff\xff\xff\xff\xff\xff\x7f", {}}).ok());
  EXPECT_FALSE(Decode<std::vector<std::string>>({"\xff\xff\xff\xff\xff\xff\xff\x7f", {}}).ok());
  EXPECT_FALSE(Decode<int32_t>(Encode(int64_t{1} << 40)).ok());
}

TEST(CodecTest, RandomBytesAreRefusedOrAreAValue) {
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    Encoded encoded;
    encoded.small.resize(random() % 40);
    for (char& c : encoded.small) c = static_cast<char>(random() % 4 == 0 ? random() : random() % 8);
    encoded.bulk = Bytes(std::string(random() % 64, 'b'));
    (void)Decode<Shape>(encoded);
    if (const auto tensor = Decode<Tensor>(encoded); tensor.ok()) (void)tensor->data();
  }
}

}  // namespace
}  // namespace tandem::rpc::remote

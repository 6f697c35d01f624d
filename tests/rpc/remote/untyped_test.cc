// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/untyped.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rpc/remote/rpc_agent.h"
#include "tests/rpc/remote/cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::remote {
namespace {

using ::tandem::testing::StatusIs;
using testing::Cluster;
using ::testing::HasSubstr;
using testing::kTestTimeout;

constexpr Function<Untyped(Untyped)> kNegate{"negate"};

UntypedMessage MessageOf(std::string data, std::vector<float> values = {}) {
  UntypedMessage message;
  message.data = std::move(data);
  if (!values.empty()) message.tensors.push_back(Tensor::Of(std::move(values)));
  return message;
}

// Counts how often it is encoded.
class Word : public UntypedObject {
 public:
  Word(std::string text, std::atomic<int>* encoded) : text(std::move(text)), encoded_(encoded) {}
  absl::StatusOr<UntypedMessage> Encode() const override {
    ++*encoded_;
    if (text == "secret") return absl::InvalidArgumentError("a secret has no encoding");
    return MessageOf(text);
  }
  const std::string text;

 private:
  std::atomic<int>* const encoded_;
};

class UntypedTest : public ::testing::TestWithParam<std::string> {
 protected:
  // "negate" changes signs; "word" makes a Word; "length" takes a reference to a Word.
  RpcAgent& Add() {
    Functions functions;
    functions.Add(names.Get("negate"), [](const Untyped& argument) -> absl::StatusOr<Untyped> {
      TANDEM_ASSIGN_OR_RETURN(UntypedMessage message, argument.message());
      for (Tensor& tensor : message.tensors) {
        TANDEM_ASSIGN_OR_RETURN(const absl::Span<float> values, tensor.mutable_values<float>());
        for (float& value : values) value = -value;
      }
      return Untyped(std::move(message));
    });
    functions.Add(names.Get("word"),
                  [this](const Context& context, const Untyped& argument) -> absl::StatusOr<Untyped> {
                    TANDEM_ASSIGN_OR_RETURN(const UntypedMessage message, argument.message());
                    if (message.data.empty()) return absl::InvalidArgumentError("the word is empty");
                    kept = context.KeepsResult<Untyped>();
                    return Untyped(std::make_shared<const Word>(message.data, &encoded));
                  });
    functions.Add(names.Get("length"), [](const Untyped& argument) -> absl::StatusOr<Untyped> {
      TANDEM_ASSIGN_OR_RETURN(const UntypedMessage message, argument.message());
      TANDEM_ASSIGN_OR_RETURN(const Untyped value, LocalUntyped(message.references.at(0)).Wait(kTestTimeout));
      return Untyped(MessageOf(absl::StrCat(static_cast<const Word&>(*value.object()).text.size())));
    });
    AddUntypedValues(&functions);
    return cluster.Add(std::move(functions));
  }

  CallTarget Other() const { return CallTarget("worker/1", {.timeout = kTestTimeout}); }

  UntypedFunctions names;
  std::atomic<int> encoded{0};
  std::atomic<bool> kept{false};
  Cluster cluster{GetParam()};
};

TEST_P(UntypedTest, AFunctionIsServedAndCalledByANameOfRunTime) {
  RpcAgent& a = Add();
  Add();
  for (const char* to : {"worker/0", "worker/1"}) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const Untyped result,
                                a.RpcSync({to, {.timeout = kTestTimeout}},
                                          names.Get(absl::StrCat("neg", "ate")), MessageOf("x", {1, -2})));
    TANDEM_ASSERT_OK_AND_ASSIGN(const UntypedMessage message, result.message());
    EXPECT_EQ(message.data, "x");
    TANDEM_ASSERT_OK_AND_ASSIGN(const absl::Span<const float> values, message.tensors.at(0).values<float>());
    EXPECT_EQ(std::vector<float>(values.begin(), values.end()), (std::vector<float>{-1, 2}));
  }
}

TEST_P(UntypedTest, ADeclarationInCppIsTheSameFunction) {
  RpcAgent& a = Add();
  Add();
  TANDEM_ASSERT_OK_AND_ASSIGN(const Untyped result, a.RpcSync(Other(), kNegate, MessageOf("declared")));
  TANDEM_ASSERT_OK_AND_ASSIGN(const UntypedMessage message, result.message());
  EXPECT_EQ(message.data, "declared");
}

TEST_P(UntypedTest, AnUnknownFunctionIsAnErrorThatNamesThoseThatExist) {
  RpcAgent& a = Add();
  Add();
  EXPECT_THAT(a.RpcSync(Other(), names.Get("nonsense"), Untyped()),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("length, negate")));
}

TEST_P(UntypedTest, AnObjectIsEncodedOnlyWhenItIsSent) {
  RpcAgent& a = Add();
  Add();
  const RRef<Untyped> word = a.Remote(Other(), names.Get("word"), MessageOf("hello"));
  UntypedMessage argument;
  argument.references.push_back(word);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Untyped length,
                              a.RpcSync(Other(), names.Get("length"), std::move(argument)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const UntypedMessage five, length.message());
  EXPECT_EQ(five.data, "5");
  EXPECT_TRUE(kept);
  EXPECT_EQ(encoded, 0);

  TANDEM_ASSERT_OK_AND_ASSIGN(const Untyped here, FetchUntyped(a, word, {.timeout = kTestTimeout}).Wait());
  TANDEM_ASSERT_OK_AND_ASSIGN(const UntypedMessage message, here.message());
  EXPECT_EQ(message.data, "hello");
  EXPECT_EQ(encoded, 1);
  EXPECT_THAT(LocalUntyped(word).Wait(kTestTimeout),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("lives at worker/1")));
}

TEST_P(UntypedTest, AValueThatCannotBeEncodedStaysUsableAtItsOwner) {
  RpcAgent& a = Add();
  Add();
  const RRef<Untyped> word = a.Remote(Other(), names.Get("word"), MessageOf("secret"));
  EXPECT_THAT(FetchUntyped(a, word, {.timeout = kTestTimeout}).Wait(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a secret has no encoding")));
  UntypedMessage argument;
  argument.references.push_back(word);
  TANDEM_EXPECT_OK(a.RpcSync(Other(), names.Get("length"), std::move(argument)));
}

TEST_P(UntypedTest, FetchingAValueWhoseCreationFailedReturnsThatError) {
  RpcAgent& a = Add();
  Add();
  const RRef<Untyped> word = a.Remote(Other(), names.Get("word"), Untyped());
  EXPECT_THAT(FetchUntyped(a, word, {.timeout = kTestTimeout}).Wait(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the word is empty")));
  // The call that creates this one does not reach its owner.
  const RRef<Untyped> nowhere =
      a.Remote({"worker/9", {.timeout = absl::Milliseconds(50)}}, names.Get("word"), MessageOf("lost"));
  EXPECT_THAT(FetchUntyped(a, nowhere, {.timeout = kTestTimeout}).Wait(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("worker/9")));
}

INSTANTIATE_TEST_SUITE_P(Transports, UntypedTest, ::testing::Values("grpc", "shm"));

}  // namespace
}  // namespace tandem::rpc::remote

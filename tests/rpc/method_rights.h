// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_RPC_METHOD_RIGHTS_H_
#define TANDEM_TESTS_RPC_METHOD_RIGHTS_H_

// The rights of a service's methods, for tests that list them.

#include <set>
#include <string>

#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "rpc/service.h"

namespace tandem::testing {

// Returns the methods that serve callers without the job's token. Fails the test unless the service has
// exactly the methods of its definition, whose file must be linked.
inline std::set<std::string> MethodsForAnyone(const rpc::Service& service) {
  const google::protobuf::ServiceDescriptor* const defined =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service.name);
  std::set<std::string> anyone, methods, expected;
  for (const rpc::Method& method : service.methods) {
    methods.insert(method.name);
    if (method.right == rpc::Right::kAnyone) anyone.insert(method.name);
  }
  EXPECT_NE(defined, nullptr) << service.name;
  for (int i = 0; defined != nullptr && i < defined->method_count(); ++i) {
    expected.insert(defined->method(i)->name());
  }
  EXPECT_EQ(methods, expected) << service.name;
  return anyone;
}

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_RPC_METHOD_RIGHTS_H_

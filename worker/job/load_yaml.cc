// SPDX-License-Identifier: Apache-2.0
#include "worker/job/load_yaml.h"

#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "yaml-cpp/eventhandler.h"

namespace tandem::worker {
namespace {

// Remembers where a document begins, and nothing else.
class DocumentStart : public YAML::EventHandler {
 public:
  const YAML::Mark& mark() const { return mark_; }

  void OnDocumentStart(const YAML::Mark& mark) override { mark_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
  }
  void OnMapEnd() override {}

 private:
  YAML::Mark mark_;
};

}  // namespace

YAML::Node LoadYaml(absl::string_view text) {
  if (text.size() > kMaxYamlBytes) {
    throw YAML::ParserException(YAML::Mark(), absl::StrCat("it has ", text.size(), " bytes, and at most ",
                                                           kMaxYamlBytes, " are read"));
  }
  const std::string whole(text);
  std::istringstream stream(whole);
  YAML::Parser parser(stream);
  DocumentStart start;
  // A text such as "," makes documents for ever: the parser does not consume it.
  if (parser.HandleNextDocument(start) && parser.HandleNextDocument(start)) {
    throw YAML::ParserException(
        start.mark(),
        "expected one YAML document, and here another one begins, or text that belongs to none");
  }
  return YAML::Load(whole);
}

}  // namespace tandem::worker

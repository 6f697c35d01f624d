#ifndef TANDEM_WORKER_JOB_FIELDS_H_
#define TANDEM_WORKER_JOB_FIELDS_H_

// Declares the fields of a job file. One declaration of a section serves to read it from YAML with every
// check, to write it back, and to document it:
//
//   void Describe(Fields& f, CheckpointSpec& c) {
//     f.Text("dir", &c.dir, "where checkpoints are written");
//     f.Integer("keep", &c.keep, AtLeast(1), "number of checkpoints to keep");
//   }
//
// Also used by launcher/plan for the cluster file; not installed.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/config_field.h"
#include "worker/job/job_errors.h"
#include "yaml-cpp/yaml.h"

namespace tandem::worker {

// A kind as documentation lists it.
struct KindDoc {
  absl::string_view name;
  absl::string_view summary;
  absl::string_view reference;
  struct Field {
    FieldInfo info;
    FieldValue default_value;
  };
  std::vector<Field> fields;
};

// The fields of one mapping. Not thread-safe. The implementations are a reader, a writer, and a lister for
// documentation.
//
// Each method declares the field `name`, whose value is at `value` and whose meaning is `help` (Markdown for
// docs/jobs.md). A reader sets the value if the file gives the field; it leaves the value unchanged, and
// reports an error, if what the file gives is wrong. Methods return whether the file gives the field, and
// false when not parsing(). `name` and `help` are not kept after the call.
class Fields {
 public:
  virtual ~Fields() = default;
  // Returns whether values are read, so that every field is declared and contradictions are reported.
  // Otherwise only fields that differ from "none" need be declared.
  virtual bool reading() const = 0;
  // Returns whether a file is read: reading() is also true when fields are only listed for documentation.
  virtual bool parsing() const { return reading(); }

  virtual bool Real(const char* name, double* value, Range range, const char* help) = 0;
  virtual bool Real(const char* name, float* value, Range range, const char* help) = 0;
  virtual bool Whole(const char* name, int64_t* value, Range range, const char* help) = 0;
  virtual bool Bool(const char* name, bool* value, const char* help) = 0;
  virtual bool Text(const char* name, std::string* value, const char* help) = 0;
  // Declares a file path. A reader expands ~ and ${NAME}.
  virtual bool Path(const char* name, std::string* value, const char* help) = 0;
  // Declares one path or a list of them.
  virtual bool Paths(const char* name, std::vector<std::string>* value, const char* help) = 0;
  // Declares one character, which may be written as "tab".
  virtual bool Character(const char* name, char* value, const char* help) = 0;
  virtual bool Texts(const char* name, std::vector<std::string>* value, const char* help) = 0;
  virtual bool Wholes(const char* name, std::vector<int>* value, Range range, const char* help) = 0;
  // Declares a choice among `names`; `*index` is the position of the chosen one.
  virtual bool OneOf(const char* name, int* index, absl::Span<const std::string> names, const char* help) = 0;
  // Declares a nested mapping. Unless `shorthand` is null, a plain value v stands for {shorthand: v}. The
  // `help` of a group whose fields have their own may be empty.
  virtual bool Group(const char* name, const char* shorthand, const char* help,
                     const std::function<void(Fields&)>& body) = 0;
  // Declares a list of mappings and calls `body(fields, i)` for each element i, which `body` adds to the
  // caller's list when reading(). `size` is the number of elements to write.
  virtual bool Groups(const char* name, const char* shorthand, const char* help, size_t size,
                      const std::function<void(Fields&, size_t)>& body) = 0;
  // Reports that the field `name` (given or not) is wrong.
  virtual void Wrong(const char* name, absl::string_view message) = 0;
  // Adds a note to later messages about this mapping, such as "of kind 'adagrad'".
  virtual void Note(const std::string& note) = 0;
  // Tells documentation of a kind that the group's field `kind` may name. Readers and writers ignore it.
  virtual void Kind(const KindDoc& kind) {}

  template <typename T>
  bool Integer(const char* name, T* value, Range range, const char* help) {
    static_assert(std::is_integral_v<T>);
    range.max = std::min(range.max, static_cast<double>(std::numeric_limits<T>::max()));
    int64_t whole = static_cast<int64_t>(*value);
    const bool given = Whole(name, &whole, range, help);
    *value = static_cast<T>(whole);
    return given;
  }
  template <typename Enum>
  bool Choice(const char* name, Enum* value, absl::Span<const std::string> names, const char* help) {
    int index = static_cast<int>(*value);
    const bool given = OneOf(name, &index, names, help);
    *value = static_cast<Enum>(index);
    return given;
  }
  template <typename T>
  bool List(const char* name, const char* shorthand, const char* help, std::vector<T>* items,
            const std::function<void(Fields&, T&)>& body) {
    std::vector<T> read;
    const bool given = Groups(name, shorthand, help, items->size(), [&](Fields& fields, size_t i) {
      if (i < items->size() && !reading()) return body(fields, (*items)[i]);
      body(fields, read.emplace_back());
    });
    if (given) *items = std::move(read);
    return given;
  }
};

// Reads the mapping `node` into the fields that `body` declares. Adds all errors to `errors`; unknown fields
// are errors. `path` is the dotted path of the mapping in the file, "" at the top.
void ReadFields(const YAML::Node& node, const std::string& path, JobErrors* errors,
                const std::function<void(Fields&)>& body);
// Returns the mapping from which ReadFields would read the same values.
YAML::Node WriteFields(const std::function<void(Fields&)>& body);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_FIELDS_H_

// SPDX-License-Identifier: Apache-2.0
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

// A kind of a group, such as the optimizer "adagrad", as documentation lists it. Texts must outlive every
// copy; in practice they are string literals.
struct KindDoc {
  absl::string_view name;
  absl::string_view summary;    // Markdown
  absl::string_view reference;  // the paper or system that it comes from; may be empty
  struct Field {
    FieldInfo info;
    FieldValue default_value;
  };
  std::vector<Field> fields;
};

// The fields of one mapping. Not thread-safe. There are three implementations:
//
//   ReadFields       reads values from a file        reading() and parsing() are true
//   WriteFields      writes values                   both are false
//   a lister         lists fields for docs/jobs.md   only reading() is true (a test implements it)
//
// Each method declares the field `name`, whose value is at `value` and whose meaning is `help` (Markdown for
// docs/jobs.md). A reader sets the value if the file gives the field. If what the file gives is wrong, it
// reports an error and leaves the value unchanged; only Paths and List may change it all the same. A writer
// writes the value, default or not.
//
// Methods return whether the file gives the field, rightly or wrongly; a field without a value ("dim:") is an
// error and counts as not given. They return false when not parsing(). `name`, `help` and the functions are
// not kept after the call. Nothing blocks.
class Fields {
 public:
  virtual ~Fields() = default;
  // Returns true if every field must be declared and contradictions be reported. Returns false when values
  // are written: optional fields that the job does not use are then left out.
  virtual bool reading() const = 0;
  // Returns true if a file is read. Differs from reading() when fields are only listed for documentation.
  virtual bool parsing() const { return reading(); }

  // Declares a finite number in `range`.
  virtual bool Real(const char* name, double* value, Range range, const char* help) = 0;
  virtual bool Real(const char* name, float* value, Range range, const char* help) = 0;
  // Declares a whole number in `range`; "1e6" is one, too.
  virtual bool Whole(const char* name, int64_t* value, Range range, const char* help) = 0;
  virtual bool Bool(const char* name, bool* value, const char* help) = 0;
  virtual bool Text(const char* name, std::string* value, const char* help) = 0;
  // Declares a file path. A reader expands ~ and ${NAME}, resolves relative paths against the directory of
  // the file (path_expansion.h), and reports what cannot be expanded. It does not check whether the file
  // exists.
  virtual bool Path(const char* name, std::string* value, const char* help) = 0;
  // Declares one path or a list of them, each as for Path. A reader leaves out paths that it cannot expand.
  virtual bool Paths(const char* name, std::vector<std::string>* value, const char* help) = 0;
  // Declares a character of one byte. The text "tab" in a file stands for '\t'. The value '\0' means that
  // there is none, and is not written.
  virtual bool Character(const char* name, char* value, const char* help) = 0;
  // Declare a list, which replaces the value's former elements. `range` is that of each element.
  virtual bool Texts(const char* name, std::vector<std::string>* value, const char* help) = 0;
  virtual bool Wholes(const char* name, std::vector<int>* value, Range range, const char* help) = 0;
  // Declares a choice among `names`; `*index` is the position of the chosen one, and must be less than
  // names.size(). After a wrong choice a reader does not report unknown fields of this mapping, because its
  // fields may depend on the choice.
  virtual bool OneOf(const char* name, int* index, absl::Span<const std::string> names, const char* help) = 0;
  // Declares a nested mapping, whose fields `body` declares before this returns. A reader does not call
  // `body` if the file does not give the group. Unless `shorthand` is null, a plain value v stands for
  // {shorthand: v}. The `help` of a group whose fields have their own may be empty.
  virtual bool Group(const char* name, const char* shorthand, const char* help,
                     const std::function<void(Fields&)>& body) = 0;
  // Declares a list of mappings and calls `body(fields, i)` for each element i. When reading(), `body` adds
  // the element to the caller's list; a lister calls it once. `size` is the number of elements to write. See
  // List, which is simpler to use.
  virtual bool Groups(const char* name, const char* shorthand, const char* help, size_t size,
                      const std::function<void(Fields&, size_t)>& body) = 0;
  // Reports that the field `name` (given or not) is wrong. `message` follows "field '<name>'". Writers and
  // listers ignore it.
  virtual void Wrong(const char* name, absl::string_view message) = 0;
  // Sets a note in later messages about this mapping, but not about nested ones, such as "of kind 'adagrad'".
  virtual void Note(const std::string& note) = 0;
  // Tells a lister about a kind that the group's field `kind` may name. Readers and writers ignore it.
  virtual void Kind(const KindDoc& kind) {}

  // Declares a whole number as Whole does, in the part of `range` that T can hold. Requires that T can hold
  // range.min (so at least 0 if T is unsigned), and a value below 2^63.
  template <typename T>
  bool Integer(const char* name, T* value, Range range, const char* help) {
    static_assert(std::is_integral_v<T>);
    range.max = std::min(range.max, static_cast<double>(std::numeric_limits<T>::max()));
    int64_t whole = static_cast<int64_t>(*value);
    const bool given = Whole(name, &whole, range, help);
    *value = static_cast<T>(whole);
    return given;
  }
  // Declares a choice as OneOf does. The enumerators are numbered from 0, in the order of `names`.
  template <typename Enum>
  bool Choice(const char* name, Enum* value, absl::Span<const std::string> names, const char* help) {
    int index = static_cast<int>(*value);
    const bool given = OneOf(name, &index, names, help);
    *value = static_cast<Enum>(index);
    return given;
  }
  // Declares a list of mappings, whose elements `body` declares one by one. A reader passes elements with T's
  // default values to `body`, and replaces `items` if the file gives the field, even wrongly.
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

// Reads the mapping `node` into the fields that `body` declares. Requires that `node` is a mapping. Adds all
// errors to `errors`; fields that `body` does not declare, and fields given twice, are errors. `path` is the
// dotted path of the mapping in the file, "" at the top.
void ReadFields(const YAML::Node& node, const std::string& path, JobErrors* errors,
                const std::function<void(Fields&)>& body);
// Returns a mapping of the fields that `body` declares, from which ReadFields would read the same values.
YAML::Node WriteFields(const std::function<void(Fields&)>& body);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_FIELDS_H_

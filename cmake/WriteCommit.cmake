# SPDX-License-Identifier: Apache-2.0
# cmake -P: writes the header OUTPUT with the commit of the source tree SOURCE. The file changes only if the commit does, so
# that a build without changes compiles nothing. COMMIT, if set, is taken instead, for packages built outside a repository.
set(commit "${COMMIT}")
if(NOT commit)
  execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
    RESULT_VARIABLE code OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT code EQUAL 0)
    set(commit "unknown")
  endif()
endif()
set(content "#define TANDEM_COMMIT \"${commit}\"\n")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT content STREQUAL before)
  file(WRITE ${OUTPUT} "${content}")
endif()

# SPDX-License-Identifier: Apache-2.0
# cmake -P: installs the build tree BUILD under WORK, builds the project CONSUMER against it, and runs its program and the
# installed command. The consumer also compiles each header that the file PUBLIC_HEADERS lists. Fails with the output of the step
# that failed.

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${what} failed (${code}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
set(prefix ${WORK}/prefix)
run("cmake --install (is everything built?)" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
run("configuring the consumer" ${CMAKE_COMMAND} -S ${CONSUMER} -B ${WORK}/build -G ${GENERATOR}
    -DCMAKE_BUILD_TYPE=${BUILD_TYPE} -DCMAKE_PREFIX_PATH=${prefix} -DPUBLIC_HEADERS=${PUBLIC_HEADERS})
run("building the consumer" ${CMAKE_COMMAND} --build ${WORK}/build)

# A header that was forgotten must not be found in the source tree: nothing may point there.
file(GLOB_RECURSE exported ${prefix}/*.cmake)
get_filename_component(source_tree ${CONSUMER}/../../.. ABSOLUTE)
foreach(file ${exported})
  file(READ ${file} content)
  string(FIND "${content}" "${source_tree}/" at)
  if(NOT at EQUAL -1)
    message(FATAL_ERROR "${file} names the source tree ${source_tree}")
  endif()
endforeach()

run("the consumer" ${WORK}/build/consumer)
message(STATUS "${output}")
run("the installed command" ${prefix}/bin/tandem --version)
run("an installed companion" ${prefix}/bin/tandem rl --help)
message(STATUS "${output}")
foreach(file share/man/man1/tandem.1 share/bash-completion/completions/tandem share/zsh/site-functions/_tandem)
  if(NOT EXISTS ${prefix}/${file})
    message(FATAL_ERROR "cmake --install has not installed ${file}")
  endif()
endforeach()

# The project of docs/install.md, which must show the files that are built here.
set(example ${CONSUMER}/../../../examples/installed)
file(READ ${CONSUMER}/../../../docs/install.md page)
foreach(file CMakeLists.txt main.cc)
  file(READ ${example}/${file} content)
  string(FIND "${page}" "${content}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "docs/install.md does not show examples/installed/${file} as it is")
  endif()
endforeach()
run("configuring examples/installed" ${CMAKE_COMMAND} -S ${example} -B ${WORK}/example -G ${GENERATOR}
    -DCMAKE_BUILD_TYPE=${BUILD_TYPE} -DCMAKE_PREFIX_PATH=${prefix})
run("building examples/installed" ${CMAKE_COMMAND} --build ${WORK}/example)
run("the program of examples/installed" ${WORK}/example/clicks)
if(NOT output STREQUAL "step 0: user 7 is (1, 1)\nstep 1: user 7 is (0.5, 2)\n")
  message(FATAL_ERROR "examples/installed printed: ${output}")
endif()
file(REMOVE_RECURSE ${WORK})

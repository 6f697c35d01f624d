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
message(STATUS "${output}")
file(REMOVE_RECURSE ${WORK})

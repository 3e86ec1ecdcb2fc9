# The target `bundle`: one archive for a machine with GPUs and no compiler: the command, the drop-ins, and the tests whose
# result depends on the machine, which are those of GPUs and of backends.
get_property(test_programs GLOBAL PROPERTY SIDESTEP_TEST_PROGRAMS)
set(SIDESTEP_BUNDLE_LIST ${CMAKE_BINARY_DIR}/bundle.txt)
set(bundled_tests "")
set(lines "$<TARGET_FILE:sidestep> bin -\n")
string(APPEND lines "$<TARGET_FILE:sidestep_nccl> lib/sidestep/nccl -\n")
string(APPEND lines "$<TARGET_FILE:sidestep_cufile> lib/sidestep/cufile -\n")
string(APPEND lines "$<TARGET_FILE:cufile-calls> bin -\n")
if(TARGET fake_nccl_net)
    string(APPEND lines "$<TARGET_FILE:fake_nccl_net> bin/tests -\n")
endif()
foreach(program IN LISTS test_programs)
    get_property(labels TARGET ${program} PROPERTY SIDESTEP_LABELS)
    if(NOT "gpu" IN_LIST labels AND NOT "contract" IN_LIST labels)
        continue()
    endif()
    list(APPEND bundled_tests ${program})
    string(REPLACE ";" "," labels "${labels}")
    string(APPEND lines "$<TARGET_FILE:${program}> bin/tests ${labels}\n")
endforeach()
file(GENERATE OUTPUT ${SIDESTEP_BUNDLE_LIST} CONTENT "${lines}")

set(archive ${CMAKE_SOURCE_DIR}/build/sidestep-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR}-linux.tar.xz)
add_custom_target(bundle
    COMMAND ${CMAKE_SOURCE_DIR}/tools/bundle.sh ${SIDESTEP_BUNDLE_LIST} ${archive}
    DEPENDS sidestep sidestep_nccl sidestep_cufile cufile-calls ${bundled_tests}
    USES_TERMINAL VERBATIM)

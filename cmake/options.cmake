# What a user may choose, and the compiler settings of every target.
option(SIDESTEP_TESTS "Build the tests" ON)
option(SIDESTEP_WERROR "Treat warnings as errors" OFF)
option(SIDESTEP_UNITY "Compile up to 32 files of a library or a command as one: most of a file's time goes into reading \
the same headers again. OFF: each by itself, for work on a single file" ON)
set(SIDESTEP_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (where the toolkit is found), ON or OFF")
set(SIDESTEP_PYTHON AUTO CACHE STRING "Build the Python package: AUTO (where Python 3.9 and pybind11 are found), ON or OFF")
set(SIDESTEP_PYTHON_EXECUTABLE "" CACHE STRING "The interpreter to build it for; empty: the system's")
set(SIDESTEP_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
# As quick as CMake's own -O3, smaller and sooner compiled (docs/lab-book.md). Loops over elements and bytes ask for that.
if(CMAKE_CXX_FLAGS_RELEASE STREQUAL "-O3 -DNDEBUG")
    set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
endif()
set(SIDESTEP_LOOPS "$<$<CONFIG:Release>:-O3>")

# Designated initialisers leave fields out on purpose.
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow
                    "$<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor;-Woverloaded-virtual>"
                    -Wno-missing-field-initializers
                    # GCC 12 sees overlaps in std::string's own copies (bug 105651), by what it happens to inline.
                    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>"
                    # It collects its garbage less often: about a tenth less processor time for a quarter more memory (docs/lab-book.md).
                    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>")
if(SIDESTEP_WERROR)
    add_compile_options(-Werror)
endif()
if(SIDESTEP_SANITIZE)
    add_compile_options(-fsanitize=${SIDESTEP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${SIDESTEP_SANITIZE})
else()
    # One binary that runs on hosts with another C++ runtime, and an older C library than this one: what is
    # never called (std::random_device, which needs glibc 2.36) is left out.
    add_link_options("$<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-static-libstdc++;-static-libgcc;LINKER:--gc-sections>")
endif()

find_program(SIDESTEP_CCACHE ccache)
if(SIDESTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # Paths within the tree are hashed as relative ones: a second clone, or a second build without CUDA, compiles nothing
    # anew. Debug information names the folder of the build, so only a debug build's objects are of one clone.
    # What a file includes is read from the compiler's own list, since preprocessing it once more takes a tenth of the time.
    set(SIDESTEP_CACHED ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_DEPEND=1)
    if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
        list(APPEND SIDESTEP_CACHED CCACHE_NOHASHDIR=1)
    endif()
    list(APPEND SIDESTEP_CACHED ${SIDESTEP_CCACHE})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${SIDESTEP_CACHED})
endif()

# sidestep_compile_together(TARGET): up to 32 of its files are compiled as one, unless SIDESTEP_UNITY is off. They are included
# by their whole paths: with the map, objects that name them (asserts, debug information) are the same in every clone, and the
# compiler cache of one serves another. The warning takes an included file for a header that others include too.
function(sidestep_compile_together target)
    if(SIDESTEP_UNITY)
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 32)
        target_compile_options(${target} PRIVATE -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=
                                                 $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
        if(NOT SIDESTEP_SANITIZE)
            # A drop-in takes what it calls, not all that was compiled with it.
            target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections>)
        endif()
        set_property(GLOBAL APPEND PROPERTY SIDESTEP_COMPILED_TOGETHER ${target})
    endif()
endfunction()

# sidestep_rarely_runs(TARGET): what people wait for is its compilation. -O1 takes one half to three quarters of the time of -O3.
function(sidestep_rarely_runs target)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# The layers put together: a static library for the command and the tests, a shared one to install.
get_property(layers GLOBAL PROPERTY SIDESTEP_LAYERS)
set(objects "")
foreach(layer IN LISTS layers)
    list(APPEND objects $<TARGET_OBJECTS:${layer}>)
endforeach()

add_library(sidestep_core STATIC ${objects})
target_include_directories(sidestep_core PUBLIC ${CMAKE_SOURCE_DIR}/include)
target_link_libraries(sidestep_core PUBLIC Threads::Threads sidestep_fmt sidestep_uring sidestep_expat ${CMAKE_DL_LIBS})

# libsidestep.so carries fmt and liburing inside and shows only what src/context/exports.map lists. It
# links the system's C++ runtime: the programs that use its C++ interface have that runtime anyway.
set(exports ${CMAKE_SOURCE_DIR}/src/context/exports.map)
add_library(sidestep_shared SHARED ${objects})
target_include_directories(sidestep_shared INTERFACE
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_compile_features(sidestep_shared INTERFACE cxx_std_20)
target_link_libraries(sidestep_shared PRIVATE Threads::Threads sidestep_fmt sidestep_uring sidestep_expat ${CMAKE_DL_LIBS})
target_link_options(sidestep_shared PRIVATE
    LINKER:--version-script=${exports} LINKER:--exclude-libs,ALL)
if(NOT SIDESTEP_SANITIZE)
    # A sanitizer's own symbols come from the program.
    target_link_options(sidestep_shared PRIVATE LINKER:--no-undefined)
endif()
set_target_properties(sidestep_shared PROPERTIES
    OUTPUT_NAME sidestep EXPORT_NAME sidestep
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
    LINK_DEPENDS ${exports})
add_library(sidestep::sidestep ALIAS sidestep_shared)

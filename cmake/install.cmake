# cmake --install: the command, the shared library, the public headers, and what finds them. Each part is a package too
# (cmake/packages.cmake).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS sidestep RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT command)
install(TARGETS sidestep_shared EXPORT sidestep-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT dev
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# Out of the linker's way: they bear the names of other libraries, and `sidestep run` finds the first here.
install(TARGETS sidestep_nccl LIBRARY DESTINATION lib/sidestep/nccl COMPONENT nccl NAMELINK_SKIP)
install(TARGETS sidestep_cufile LIBRARY DESTINATION lib/sidestep/cufile COMPONENT cufile NAMELINK_SKIP)
install(DIRECTORY include/sidestep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
    FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(FILES completions/sidestep.bash RENAME sidestep
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT command)
install(FILES completions/sidestep.zsh RENAME _sidestep DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions
    COMPONENT command)
install(FILES completions/sidestep.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
    COMPONENT command)
get_property(man_folder GLOBAL PROPERTY SIDESTEP_MAN_FOLDER)
install(DIRECTORY ${man_folder} DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT command OPTIONAL)
install(DIRECTORY ${CMAKE_BINARY_DIR}/share/sidestep/machines DESTINATION ${CMAKE_INSTALL_DATADIR}/sidestep
    COMPONENT command)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/sidestep COMPONENT command)

# find_package(sidestep): the target sidestep::sidestep. Until 1.0 a new minor version is a new interface.
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/sidestep)
install(EXPORT sidestep-targets NAMESPACE sidestep:: DESTINATION ${package_folder} COMPONENT dev)
configure_package_config_file(cmake/sidestep-config.cmake.in ${CMAKE_BINARY_DIR}/sidestep-config.cmake
    INSTALL_DESTINATION ${package_folder} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/sidestep-config-version.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/sidestep-config.cmake ${CMAKE_BINARY_DIR}/sidestep-config-version.cmake
    DESTINATION ${package_folder} COMPONENT dev)

# pkg-config sidestep. The prefix is told from where the file lies, so that the tree can be moved.
file(RELATIVE_PATH SIDESTEP_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/sidestep.pc.in ${CMAKE_BINARY_DIR}/sidestep.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/sidestep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)

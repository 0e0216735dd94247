# Installing: the program, one static library with its public headers, a CMake package, a pkg-config file, the manual
# page and the shells' completions, the licence.
#
# The library is everything that training needs, in one archive, libithaca.a, for users as the target ithaca::ithaca. What
# it needs in turn is collected from the targets of the folders, so that a new dependency cannot be forgotten: a library
# that this file does not know how to find again is an error.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
include(IthacaPublicHeaders)

# ---- the library ----

# Sets `libraries` to the targets of Ithaca that `roots` need, and `external` to the libraries of others.
function(ithaca_collect roots libraries external)
  set(own)
  set(others)
  set(waiting ${roots})
  while(waiting)
    list(POP_FRONT waiting name)
    if(name MATCHES "^\\$<LINK_ONLY:(.*)>$")
      set(name ${CMAKE_MATCH_1})
    endif()
    if(NOT TARGET ${name})
      message(FATAL_ERROR "ithaca_collect: the library needs ${name}, which is not a target")
    endif()
    get_target_property(alias ${name} ALIASED_TARGET)
    if(alias)
      set(name ${alias})
    endif()
    if(name MATCHES "^ithaca_.*flags$" OR name IN_LIST own OR name IN_LIST others)
      continue()
    endif()
    if(NOT name MATCHES "^ithaca_")
      list(APPEND others ${name})
      continue()
    endif()
    list(APPEND own ${name})
    get_target_property(needed ${name} LINK_LIBRARIES)
    if(needed)
      list(APPEND waiting ${needed})
    endif()
  endwhile()
  # Header-only, and in no public header.
  list(REMOVE_ITEM others nlohmann_json::nlohmann_json)
  set(${libraries} ${own} PARENT_SCOPE)
  set(${external} ${others} PARENT_SCOPE)
endfunction()

set(ithaca_roots ithaca_train)
if(TARGET ithaca_plan)
  list(APPEND ithaca_roots ithaca_plan)
endif()
ithaca_collect("${ithaca_roots}" ithaca_parts ithaca_external)

add_library(ithaca_whole STATIC)
foreach(part IN LISTS ithaca_parts)
  target_sources(ithaca_whole PRIVATE $<TARGET_OBJECTS:${part}>)
endforeach()
set_target_properties(ithaca_whole PROPERTIES OUTPUT_NAME ithaca EXPORT_NAME ithaca LINKER_LANGUAGE CXX)
target_compile_features(ithaca_whole INTERFACE cxx_std_20)
target_include_directories(ithaca_whole INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(ithaca_whole INTERFACE ${ithaca_external})

# ---- how a user's project finds what the library needs ----

set(ITHACA_FIND_DEPENDENCIES)
set(ITHACA_PC_REQUIRES)
set(ITHACA_PC_LIBS)
foreach(library IN LISTS ithaca_external)
  if(library MATCHES "^PkgConfig::(.*)$")
    set(prefix ${CMAKE_MATCH_1})
    string(APPEND ITHACA_FIND_DEPENDENCIES
           "find_dependency(PkgConfig)\npkg_check_modules(${prefix} REQUIRED IMPORTED_TARGET ${${prefix}_MODULE_NAME})\n")
    list(APPEND ITHACA_PC_REQUIRES ${${prefix}_MODULE_NAME})
  elseif(library STREQUAL "Threads::Threads")
    string(APPEND ITHACA_FIND_DEPENDENCIES "find_dependency(Threads)\n")
    list(APPEND ITHACA_PC_LIBS -pthread)
  elseif(library STREQUAL "BLAS::BLAS")
    string(APPEND ITHACA_FIND_DEPENDENCIES "find_dependency(BLAS)\n")
    list(APPEND ITHACA_PC_LIBS ${BLAS_LIBRARIES})
  elseif(library STREQUAL "fmt::fmt")
    string(APPEND ITHACA_FIND_DEPENDENCIES "find_dependency(fmt)\n")
    list(APPEND ITHACA_PC_REQUIRES fmt)
  elseif(library STREQUAL "yaml-cpp")
    string(APPEND ITHACA_FIND_DEPENDENCIES "find_dependency(yaml-cpp)\n")
    list(APPEND ITHACA_PC_REQUIRES yaml-cpp)
  elseif(library STREQUAL "ZLIB::ZLIB")
    string(APPEND ITHACA_FIND_DEPENDENCIES "find_dependency(ZLIB)\n")
    list(APPEND ITHACA_PC_REQUIRES zlib)
  elseif(library STREQUAL "hwy::hwy")
    string(APPEND ITHACA_FIND_DEPENDENCIES "find_dependency(hwy CONFIG)\n")
    list(APPEND ITHACA_PC_REQUIRES libhwy)
  elseif(library STREQUAL "spdlog::spdlog")
    string(APPEND ITHACA_FIND_DEPENDENCIES "find_dependency(spdlog)\n")
    list(APPEND ITHACA_PC_REQUIRES spdlog)
  elseif(library MATCHES "^CUDA::(.*)$")
    string(APPEND ITHACA_FIND_DEPENDENCIES "find_dependency(CUDAToolkit)\n")
    list(APPEND ITHACA_PC_LIBS -L${CUDAToolkit_LIBRARY_DIR} -l${CMAKE_MATCH_1} -ldl -lrt)
  elseif(library STREQUAL "cuDNN::cuDNN")
    string(APPEND ITHACA_FIND_DEPENDENCIES "find_dependency(cuDNN)\n")
    list(APPEND ITHACA_PC_LIBS ${cuDNN_LIBRARY})
  else()
    message(FATAL_ERROR "cmake/IthacaInstall.cmake does not know how a user's project finds ${library}")
  endif()
endforeach()
list(REMOVE_DUPLICATES ITHACA_PC_REQUIRES)
list(REMOVE_DUPLICATES ITHACA_PC_LIBS)
list(JOIN ITHACA_PC_REQUIRES " " ITHACA_PC_REQUIRES)
list(JOIN ITHACA_PC_LIBS " " ITHACA_PC_LIBS)

# ---- what goes where ----

set(ithaca_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/ithaca)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ithacaConfig.cmake.in ${PROJECT_BINARY_DIR}/package/ithacaConfig.cmake
                              INSTALL_DESTINATION ${ithaca_package_folder})
# Before 1.0 a minor version may change what others build on.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/ithacaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH ITHACA_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${CMAKE_CURRENT_LIST_DIR}/ithaca.pc.in ${PROJECT_BINARY_DIR}/package/ithaca.pc @ONLY)

install(TARGETS ithaca RUNTIME)
install(TARGETS ithaca_whole EXPORT ithacaTargets ARCHIVE)
install(EXPORT ithacaTargets NAMESPACE ithaca:: DESTINATION ${ithaca_package_folder})
install(FILES ${PROJECT_BINARY_DIR}/package/ithacaConfig.cmake ${PROJECT_BINARY_DIR}/package/ithacaConfigVersion.cmake
        DESTINATION ${ithaca_package_folder})
if(ITHACA_WITH_CUDA)
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/FindcuDNN.cmake ${CMAKE_CURRENT_LIST_DIR}/CudaWheelFolders.cmake
          DESTINATION ${ithaca_package_folder})
endif()
install(FILES ${PROJECT_BINARY_DIR}/package/ithaca.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(CODE "
  include(\"${CMAKE_CURRENT_LIST_DIR}/IthacaPublicHeaders.cmake\")
  ithaca_install_headers(\"${PROJECT_SOURCE_DIR}\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/ithaca\")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES \${ITHACA_INSTALLED_HEADERS})
")
# The program writes its own manual page and completions. One that cannot run here (built for another machine) goes
# without.
install(CODE "
  function(ithaca_install_text path)
    execute_process(COMMAND \"$<TARGET_FILE:ithaca>\" \${ARGN} OUTPUT_VARIABLE text ERROR_VARIABLE complaint
                    RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
      message(STATUS \"Not installed: \${path}: \${complaint}\")
      return()
    endif()
    set(target \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/\${path}\")
    message(STATUS \"Installing: \${target}\")
    get_filename_component(folder \"\${target}\" DIRECTORY)
    file(MAKE_DIRECTORY \"\${folder}\")
    file(WRITE \"\${target}\" \"\${text}\")
    list(APPEND CMAKE_INSTALL_MANIFEST_FILES \"\${target}\")
    set(CMAKE_INSTALL_MANIFEST_FILES \${CMAKE_INSTALL_MANIFEST_FILES} PARENT_SCOPE)
  endfunction()
  ithaca_install_text(${CMAKE_INSTALL_MANDIR}/man1/ithaca.1 man)
  ithaca_install_text(${CMAKE_INSTALL_DATADIR}/bash-completion/completions/ithaca completion bash)
  ithaca_install_text(${CMAKE_INSTALL_DATADIR}/zsh/site-functions/_ithaca completion zsh)
  ithaca_install_text(${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d/ithaca.fish completion fish)
")

# ---- a project of its own that uses what was installed ----

# Not with sanitizers, whose runtime the consumer would need too, nor with CUDA, which needs a toolkit at the same place.
if(ITHACA_BUILD_TESTS AND NOT ITHACA_SANITIZE AND NOT ITHACA_WITH_CUDA)
  add_test(NAME consumer_test
           COMMAND ${PROJECT_SOURCE_DIR}/tests/consumer_test.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
                   ${CMAKE_CXX_COMPILER})
  set_tests_properties(consumer_test PROPERTIES LABELS unit TIMEOUT 900)
endif()

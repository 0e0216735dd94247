# Finds NVIDIA NCCL: in $NCCL_ROOT (variable or environment), the system, the CUDA toolkit, or Python wheels.
#
# Defines the target NCCL::NCCL and NCCL_INCLUDE_DIR, NCCL_LIBRARY, NCCL_VERSION.

include(CudaWheelFolders)
ithaca_cuda_wheel_folders(_nccl_wheels nccl)
set(_nccl_hints ${NCCL_ROOT} $ENV{NCCL_ROOT})
set(_nccl_paths ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_TARGET_DIR} $ENV{CUDA_HOME})
file(GLOB _nccl_toolkits LIST_DIRECTORIES true /usr/local/cuda /usr/local/cuda-* /usr/local/cuda*/targets/x86_64-linux)
list(APPEND _nccl_paths ${_nccl_toolkits} ${_nccl_wheels})

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${_nccl_hints} PATHS ${_nccl_paths} PATH_SUFFIXES include)
# Wheels hold the versioned library only.
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.9 libnccl.so.2 HINTS ${_nccl_hints} PATHS ${_nccl_paths}
             PATH_SUFFIXES lib lib64 lib/x86_64-linux-gnu)

if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" _nccl_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH|PATCHLEVEL)[ \t]+[0-9]+")
  set(NCCL_VERSION)
  foreach(part MAJOR MINOR "PATCH(LEVEL)?")
    string(REGEX MATCH "#define NCCL_${part}[ \t]+([0-9]+)" _nccl_match "${_nccl_lines}")
    string(REGEX MATCH "[0-9]+$" _nccl_number "${_nccl_match}")
    list(APPEND NCCL_VERSION ${_nccl_number})
  endforeach()
  list(JOIN NCCL_VERSION "." NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}")
  target_include_directories(NCCL::NCCL SYSTEM INTERFACE "${NCCL_INCLUDE_DIR}")
endif()

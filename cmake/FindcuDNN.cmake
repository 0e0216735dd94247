# Finds NVIDIA cuDNN: in $CUDNN_ROOT (variable or environment), the system, the CUDA toolkit, or Python wheels.
#
# Defines the target cuDNN::cuDNN and cuDNN_INCLUDE_DIR, cuDNN_LIBRARY, cuDNN_VERSION.

include(CudaWheelFolders)
ithaca_cuda_wheel_folders(_cudnn_wheels cudnn)
set(_cudnn_hints ${CUDNN_ROOT} $ENV{CUDNN_ROOT})
set(_cudnn_paths ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_TARGET_DIR} $ENV{CUDA_HOME})
file(GLOB _cudnn_toolkits LIST_DIRECTORIES true /usr/local/cuda /usr/local/cuda-* /usr/local/cuda*/targets/x86_64-linux)
list(APPEND _cudnn_paths ${_cudnn_toolkits} ${_cudnn_wheels})

find_path(cuDNN_INCLUDE_DIR cudnn.h HINTS ${_cudnn_hints} PATHS ${_cudnn_paths} PATH_SUFFIXES include)
# Wheels hold the versioned library only.
find_library(cuDNN_LIBRARY NAMES cudnn libcudnn.so.9 libcudnn.so.2 HINTS ${_cudnn_hints} PATHS ${_cudnn_paths}
             PATH_SUFFIXES lib lib64 lib/x86_64-linux-gnu)

if(cuDNN_INCLUDE_DIR)
  file(STRINGS "${cuDNN_INCLUDE_DIR}/cudnn_version.h" _cudnn_lines REGEX "#define CUDNN_(MAJOR|MINOR|PATCH|PATCHLEVEL)[ \t]+[0-9]+")
  set(cuDNN_VERSION)
  foreach(part MAJOR MINOR "PATCH(LEVEL)?")
    string(REGEX MATCH "#define CUDNN_${part}[ \t]+([0-9]+)" _cudnn_match "${_cudnn_lines}")
    string(REGEX MATCH "[0-9]+$" _cudnn_number "${_cudnn_match}")
    list(APPEND cuDNN_VERSION ${_cudnn_number})
  endforeach()
  list(JOIN cuDNN_VERSION "." cuDNN_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(cuDNN REQUIRED_VARS cuDNN_LIBRARY cuDNN_INCLUDE_DIR VERSION_VAR cuDNN_VERSION)
mark_as_advanced(cuDNN_INCLUDE_DIR cuDNN_LIBRARY)

if(cuDNN_FOUND AND NOT TARGET cuDNN::cuDNN)
  add_library(cuDNN::cuDNN UNKNOWN IMPORTED)
  set_target_properties(cuDNN::cuDNN PROPERTIES IMPORTED_LOCATION "${cuDNN_LIBRARY}")
  target_include_directories(cuDNN::cuDNN SYSTEM INTERFACE "${cuDNN_INCLUDE_DIR}")
endif()

# Which headers are public, and installing them.
#
# Public are the headers below and everything that they include. Internal ones (kernels, test support) are reached by
# none of them. Used by cmake/IthacaInstall.cmake and, as a script, by the documentation:
#
#   cmake -DITHACA_SOURCE_FOLDER=. -DLIST=public_headers.txt -P cmake/IthacaPublicHeaders.cmake
#
# writes their paths, a line each.

cmake_policy(VERSION 3.25)

set(ITHACA_ENTRY_HEADERS
  base/error.h base/text.h base/random.h
  backend/cpu/cpu_backend.h backend/cuda/cuda_backend.h
  comm/mesh.h comm/thread_ranks.h
  attention/schedule.h attention/auto_schedule.h attention/communication_cost.h
  model/description.h
  data/dataset.h data/step_loader.h
  checkpoint/hugging_face.h checkpoint/safetensors.h
  train/recipe_options.h train/run.h train/verify.h train/metrics.h train/report.h train/tensorboard.h)

# Sets `result` to the public headers, relative to src/.
function(ithaca_public_headers source_folder result)
  set(found)
  set(waiting ${ITHACA_ENTRY_HEADERS})
  while(waiting)
    list(POP_FRONT waiting header)
    if(header IN_LIST found)
      continue()
    endif()
    if(NOT EXISTS "${source_folder}/src/${header}")
      message(FATAL_ERROR "src/${header} is a public header, or is included by one, but is not there; see cmake/IthacaPublicHeaders.cmake")
    endif()
    if(header MATCHES "(^|[/_])test(_|ing|\\.)|-inl\\.h$|harness")
      message(FATAL_ERROR "src/${header} is test support or internal, but a public header includes it")
    endif()
    list(APPEND found ${header})
    file(STRINGS "${source_folder}/src/${header}" includes REGEX "^#include \"")
    foreach(line IN LISTS includes)
      string(REGEX REPLACE "^#include \"([^\"]*)\".*" "\\1" included "${line}")
      list(APPEND waiting "${included}")
    endforeach()
  endwhile()
  list(SORT found)
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# Copies them to `destination`. They include each other as <ithaca/...> there, so that no folder of a user's own project
# ("base", "data") can come between. Sets ITHACA_INSTALLED_HEADERS to the files.
function(ithaca_install_headers source_folder destination)
  ithaca_public_headers("${source_folder}" headers)
  set(installed)
  foreach(header IN LISTS headers)
    file(READ "${source_folder}/src/${header}" content)
    string(REGEX REPLACE "#include \"([^\"\n]*)\"" "#include <ithaca/\\1>" content "${content}")
    set(target "${destination}/${header}")
    set(before)
    if(EXISTS "${target}")
      file(READ "${target}" before)
    endif()
    if(NOT before STREQUAL content)
      message(STATUS "Installing: ${target}")
      get_filename_component(folder "${target}" DIRECTORY)
      file(MAKE_DIRECTORY "${folder}")
      file(WRITE "${target}" "${content}")
    endif()
    list(APPEND installed "${target}")
  endforeach()
  set(ITHACA_INSTALLED_HEADERS ${installed} PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  get_filename_component(folder "${ITHACA_SOURCE_FOLDER}" ABSOLUTE)
  ithaca_public_headers("${folder}" headers)
  list(TRANSFORM headers PREPEND "${folder}/src/")
  list(JOIN headers "\n" text)
  file(WRITE "${LIST}" "${text}\n")
endif()

# Reads the C++ files named on the command line and prints for each of them one line: the file, then
# every file of the repository that it includes, directly or not. Run in the root of the repository;
# `root`, with a slash, is cut off where a file of a unity build includes by the whole path.
FNR == 1 { order[++count] = FILENAME; known[FILENAME] = 1 }

/^#include "/ {
  split($0, part, "\"")
  if (root != "" && index(part[2], root) == 1) part[2] = substr(part[2], length(root) + 1)
  direct[FILENAME] = direct[FILENAME] " " part[2]
}

# `folder`: of who includes it, with a slash.
function resolve(name, folder) {
  if (name in known) return name
  if (("include/" name) in known) return "include/" name
  if ((folder name) in known) return folder name
  return ""
}

function walk(file,   names, n, i, next_file, folder) {
  folder = file
  sub(/[^\/]*$/, "", folder)
  n = split(direct[file], names, " ")
  for (i = 1; i <= n; ++i) {
    next_file = resolve(names[i], folder)
    if (next_file == "" || next_file in seen) continue
    seen[next_file] = 1
    closure = closure " " next_file
    walk(next_file)
  }
}

END {
  for (f = 1; f <= count; ++f) {
    split("", seen)
    seen[order[f]] = 1
    closure = order[f]
    walk(order[f])
    print closure
  }
}

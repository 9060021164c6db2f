# Start the coding agent in the checkout that this is run in, without letting the checkout configure it.
# usage: sh start.sh PROGRAM OPTION...        the prompt comes by stdin

# OpenCode loads plugins from these even where project configuration is off. They are taken out of the agent's sight
# and marked so that git keeps them in every commit as they were: an agent neither obeys nor changes them.
set -- "$PWD" "$@"
for name in .opencode opencode.json opencode.jsonc; do
  if [ -e "$name" ] || [ -L "$name" ]; then
    git ls-files -z -- "$name" </dev/null | git update-index -z --skip-worktree --stdin && rm -rf -- "$name" || {
      echo "the repository's agent configuration cannot be set aside: $name" >&2
      exit 70
    }
  fi
done

# Its runtime also loads .env and bunfig.toml of the folder that it is started in.
cd / || exit 70
checkout=$1 program=$2
shift 2
exec "$program" run --dir "$checkout" "$@"

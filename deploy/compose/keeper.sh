#!/bin/sh
# Starts again what `docker compose kill` has ended, until it is ended itself. Docker starts again what crashes; what was
# killed by a command it leaves down, as a wish. With this running only `stop`, `down` and the like are wishes.
#
#   deploy/compose/keeper.sh        as a service of this machine, say, by whoever may use Docker
#
# An operator's settings of Compose (COMPOSE_PROJECT_NAME, …) are taken from the environment.
set -eu
cd "$(dirname "$0")/../.."

project=$(docker compose config | sed -n 's/^name: //p')
[ -n "$project" ]
asked=
killed=
since=$(date +%s)
echo "watching over $project"

# A stop is a SIGTERM (15), and after its time a SIGKILL (9), too; a kill begins with that.
docker events --since "$since" --filter type=container --filter "label=com.docker.compose.project=$project" \
  --filter event=kill --filter event=die --format '{{.Action}} {{.ID}} {{.Actor.Attributes.signal}}' |
  while read -r action id signal; do
    case "$action $signal" in
      "kill 15") asked="$asked $id" ;;
      "kill 9") case "$asked " in *" $id "*) ;; *) killed="$killed $id" ;; esac ;;
      die*)
        case "$killed " in
          *" $id "*)
            # Those that are to end by themselves have no such policy.
            if [ "$(docker inspect -f '{{.HostConfig.RestartPolicy.Name}}' "$id" 2>/dev/null)" = unless-stopped ]; then
              echo "started again: $(docker inspect -f '{{index .Config.Labels "com.docker.compose.service"}}' "$id")"
              docker start "$id" >/dev/null || echo "$id could not be started" >&2
            fi
            ;;
        esac
        asked=$(echo "$asked" | sed "s/ $id//g")
        killed=$(echo "$killed" | sed "s/ $id//g")
        ;;
    esac
  done

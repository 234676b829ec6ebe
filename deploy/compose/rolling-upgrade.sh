#!/bin/sh
# Replaces every container of the cluster `main` by one of the image that is named now, with nothing lost: edges first, one
# after another, each drained before, then the head.
#
#   TIDEGATE_IMAGE=tidegate:next deploy/compose/rolling-upgrade.sh          [EDGE…: those instead of all]
#
# Accounts, rights and configurations are made anew before, and every RabbitMQ that runs is told of its accounts.
# The RabbitMQ of an edge is replaced with it; that of the head is not: `docker compose up -d --wait head-rabbitmq` does
# that, while publishers wait. An operator's settings of Compose (COMPOSE_PROJECT_NAME, …) are taken from the environment.
set -eu
cd "$(dirname "$0")/../.."

tidegate() { docker compose run --rm -T --no-deps cli "$@"; }
replace() { docker compose up -d --wait --no-deps --force-recreate "$@"; }

for setup in $(docker compose config --services | grep '^setup' | sort); do
  docker compose run --rm -T "$setup"
done
for rabbitmq in $(docker compose ps --services | grep -e '-rabbitmq$'); do
  for file in 1-exchanges 2-accounts; do
    docker compose exec -T "$rabbitmq" rabbitmqctl import_definitions "/access/definitions/$file.json"
  done
done

[ $# -gt 0 ] || set -- edge-1 edge-2 edge-3 edge-4
for edge in "$@"; do
  tidegate drain "$edge" --wait
  replace "$edge-rabbitmq"
  replace "$edge"
  tidegate undrain "$edge"
done
replace head

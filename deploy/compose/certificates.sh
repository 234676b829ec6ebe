#!/bin/sh
# In the service `certificates` of deploy/compose/tls.yml: an authority for trying TLS out, and what each part needs of it.
#
#   certificates.sh HOST BROKER…      HOST: the name or address by which clients reach this machine
set -eu
host=$1
shift
authority=/access/authority
for broker in "$@"; do
  sh /etc/tidegate-scripts/make-test-authority.sh $authority "$broker=$broker,$broker-rabbitmq,localhost,127.0.0.1,$host"
  mkdir -p "/access/$broker/tls"
  cp $authority/ca.pem "$authority/$broker/cert.pem" "$authority/$broker/key.pem" "/access/$broker/tls/"
  # The broker and its RabbitMQ run as different users; nobody else is given this volume.
  chmod 644 "/access/$broker/tls/key.pem"
done
for reader in load operator analyst prometheus; do
  if [ -d /access/$reader ]; then cp $authority/ca.pem /access/$reader/ca.pem; fi
done

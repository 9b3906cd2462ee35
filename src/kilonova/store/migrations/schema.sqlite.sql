-- Written by `make schema` from the metadata.

CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE aggregates (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    uuid TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE
);

CREATE UNIQUE INDEX aggregates_name ON aggregates (name);

CREATE UNIQUE INDEX aggregates_uuid ON aggregates (uuid);

CREATE TABLE attempts (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    server_id TEXT NOT NULL,
    operation_id TEXT,
    kind TEXT NOT NULL,
    host TEXT,
    diagnosis TEXT NOT NULL,
    created_at DOUBLE NOT NULL
);

CREATE INDEX attempts_server ON attempts (server_id, id);

CREATE TABLE catalog_endpoints (
    id TEXT NOT NULL,
    service_id TEXT NOT NULL,
    region_id TEXT,
    interface TEXT NOT NULL,
    url TEXT NOT NULL,
    enabled BOOLEAN NOT NULL,
    extra TEXT NOT NULL,
    CONSTRAINT pk_catalog_endpoints PRIMARY KEY (id)
);

CREATE INDEX ix_catalog_endpoints_region_id ON catalog_endpoints (region_id);

CREATE INDEX ix_catalog_endpoints_service_id ON catalog_endpoints (service_id);

CREATE TABLE catalog_services (
    id TEXT NOT NULL,
    type TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    enabled BOOLEAN NOT NULL,
    extra TEXT NOT NULL,
    CONSTRAINT pk_catalog_services PRIMARY KEY (id)
);

CREATE TABLE consumers (
    uuid TEXT NOT NULL,
    project_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    type TEXT,
    generation BIGINT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    CONSTRAINT pk_consumers PRIMARY KEY (uuid)
);

CREATE INDEX consumers_project ON consumers (project_id, user_id);

CREATE TABLE deleted_images (
    id TEXT NOT NULL,
    deleted_at DOUBLE NOT NULL,
    CONSTRAINT pk_deleted_images PRIMARY KEY (id)
);

CREATE TABLE departed_providers (
    id BIGINT NOT NULL,
    change BIGINT NOT NULL,
    gone_at DOUBLE NOT NULL,
    CONSTRAINT pk_departed_providers PRIMARY KEY (id)
);

CREATE INDEX departed_providers_change ON departed_providers (change);

CREATE TABLE domains (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    enabled BOOLEAN NOT NULL,
    extra TEXT NOT NULL,
    CONSTRAINT pk_domains PRIMARY KEY (id),
    CONSTRAINT uq_domains_name UNIQUE (name)
);

CREATE TABLE endpoint_groups (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT,
    filters TEXT NOT NULL,
    extra TEXT NOT NULL,
    CONSTRAINT pk_endpoint_groups PRIMARY KEY (id)
);

CREATE TABLE flavors (
    id INTEGER NOT NULL,
    flavor_id TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT,
    vcpus BIGINT NOT NULL,
    ram BIGINT NOT NULL,
    disk BIGINT NOT NULL,
    ephemeral BIGINT NOT NULL,
    swap BIGINT NOT NULL,
    rxtx_factor DOUBLE NOT NULL,
    is_public BOOLEAN NOT NULL,
    disabled BOOLEAN NOT NULL,
    extra_specs TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE,
    CONSTRAINT pk_flavors PRIMARY KEY (id)
);

CREATE UNIQUE INDEX flavors_flavor_id ON flavors (flavor_id);

CREATE UNIQUE INDEX flavors_name ON flavors (name);

CREATE INDEX flavors_size ON flavors (is_public, ram, disk);

CREATE TABLE images (
    id TEXT NOT NULL,
    name TEXT,
    owner TEXT,
    status TEXT NOT NULL,
    visibility TEXT NOT NULL,
    disk_format TEXT,
    container_format TEXT,
    min_disk BIGINT NOT NULL,
    min_ram BIGINT NOT NULL,
    protected BOOLEAN NOT NULL,
    hidden BOOLEAN NOT NULL,
    size BIGINT,
    virtual_size BIGINT,
    checksum TEXT,
    hash_algo TEXT,
    hash_value TEXT,
    data_id TEXT,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    CONSTRAINT pk_images PRIMARY KEY (id)
);

CREATE INDEX ix_images_created ON images (created_at, id);

CREATE INDEX ix_images_name ON images (name);

CREATE INDEX ix_images_owner ON images (owner, created_at, id);

CREATE INDEX ix_images_status ON images (status);

CREATE INDEX ix_images_visibility ON images (visibility, created_at, id);

CREATE TABLE incarnation (
    number BIGINT NOT NULL,
    leases BIGINT NOT NULL,
    CONSTRAINT pk_incarnation PRIMARY KEY (number)
);

CREATE TABLE keypairs (
    id INTEGER NOT NULL,
    user_id TEXT NOT NULL,
    name TEXT NOT NULL,
    type TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    public_key TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    CONSTRAINT pk_keypairs PRIMARY KEY (id)
);

CREATE UNIQUE INDEX keypairs_user_name ON keypairs (user_id, name);

CREATE TABLE moves (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    operation_id TEXT NOT NULL,
    server_id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    type TEXT NOT NULL,
    source_host TEXT NOT NULL,
    source_node TEXT NOT NULL,
    dest_host TEXT,
    dest_node TEXT,
    old_flavor TEXT NOT NULL,
    new_flavor TEXT NOT NULL,
    old_vm_state TEXT NOT NULL,
    old_power_state BIGINT NOT NULL,
    transfer TEXT,
    outcome TEXT,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    CONSTRAINT uq_moves_operation_id UNIQUE (operation_id)
);

CREATE INDEX moves_dest ON moves (dest_host, id);

CREATE INDEX moves_project ON moves (project_id, id);

CREATE INDEX moves_server ON moves (server_id, id);

CREATE INDEX moves_source ON moves (source_host, id);

CREATE TABLE network_quotas (
    project_id TEXT NOT NULL,
    resource TEXT NOT NULL,
    maximum BIGINT NOT NULL,
    CONSTRAINT pk_network_quotas PRIMARY KEY (project_id, resource)
);

CREATE TABLE networks (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    description TEXT NOT NULL,
    tags TEXT NOT NULL,
    revision_number BIGINT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    admin_state_up BOOLEAN NOT NULL,
    shared BOOLEAN NOT NULL,
    external BOOLEAN NOT NULL,
    is_default BOOLEAN NOT NULL,
    mtu BIGINT NOT NULL,
    port_security_enabled BOOLEAN NOT NULL,
    network_type TEXT NOT NULL,
    physical_network TEXT NOT NULL,
    segmentation_id BIGINT,
    availability_zone_hints TEXT NOT NULL,
    CONSTRAINT pk_networks PRIMARY KEY (id)
);

CREATE INDEX ix_networks_name ON networks (name);

CREATE INDEX ix_networks_open ON networks (id) WHERE shared OR external;

CREATE INDEX ix_networks_project ON networks (project_id);

CREATE UNIQUE INDEX uq_networks_segment ON networks (network_type, physical_network, segmentation_id);

CREATE TABLE operation_events (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "key" TEXT NOT NULL,
    payload TEXT NOT NULL,
    created_at DOUBLE NOT NULL
);

CREATE INDEX ix_operation_events_created_at ON operation_events (created_at);

CREATE INDEX ix_operation_events_key ON operation_events ("key");

CREATE TABLE operations (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    action TEXT NOT NULL,
    server_id TEXT,
    guest_id TEXT,
    project_id TEXT,
    user_id TEXT,
    request_id TEXT,
    host TEXT,
    params TEXT NOT NULL,
    "plan" TEXT NOT NULL,
    results TEXT NOT NULL,
    note TEXT NOT NULL,
    state TEXT NOT NULL,
    step TEXT NOT NULL,
    undo_to TEXT,
    round BIGINT NOT NULL,
    error TEXT,
    attempt BIGINT NOT NULL,
    trouble TEXT,
    progress BIGINT,
    cancel_requested BOOLEAN NOT NULL,
    lease_owner TEXT,
    lease_until DOUBLE NOT NULL,
    epoch BIGINT NOT NULL,
    run_at DOUBLE NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    round_started_at DOUBLE NOT NULL,
    step_started_at DOUBLE,
    step_idle DOUBLE DEFAULT '0' NOT NULL,
    finished_at DOUBLE,
    CONSTRAINT uq_operations_id UNIQUE (id)
);

CREATE INDEX ix_operations_due ON operations (run_at) WHERE finished_at IS NULL;

CREATE INDEX ix_operations_request_id ON operations (request_id);

CREATE INDEX ix_operations_server_id_seq ON operations (server_id, seq);

CREATE INDEX ix_operations_unfinished_of_guest ON operations (guest_id) WHERE finished_at IS NULL AND guest_id IS NOT NULL;

CREATE INDEX ix_operations_unfinished_of_server ON operations (server_id, seq) WHERE finished_at IS NULL;

CREATE TABLE policies (
    id TEXT NOT NULL,
    type TEXT NOT NULL,
    blob TEXT NOT NULL,
    extra TEXT NOT NULL,
    CONSTRAINT pk_policies PRIMARY KEY (id)
);

CREATE TABLE quota_classes (
    class_name TEXT NOT NULL,
    resource TEXT NOT NULL,
    hard_limit BIGINT NOT NULL,
    CONSTRAINT pk_quota_classes PRIMARY KEY (class_name, resource)
);

CREATE TABLE quotas (
    project_id TEXT NOT NULL,
    resource TEXT NOT NULL,
    hard_limit BIGINT NOT NULL,
    CONSTRAINT pk_quotas PRIMARY KEY (project_id, resource)
);

CREATE TABLE regions (
    id TEXT NOT NULL,
    description TEXT NOT NULL,
    parent_region_id TEXT,
    extra TEXT NOT NULL,
    CONSTRAINT pk_regions PRIMARY KEY (id)
);

CREATE INDEX ix_regions_parent_region_id ON regions (parent_region_id);

CREATE TABLE registered_limits (
    id TEXT NOT NULL,
    service_id TEXT NOT NULL,
    region_id TEXT NOT NULL,
    resource_name TEXT NOT NULL,
    default_limit BIGINT NOT NULL,
    description TEXT,
    extra TEXT NOT NULL,
    CONSTRAINT pk_registered_limits PRIMARY KEY (id),
    CONSTRAINT uq_registered_limits_service_id_region_id_resource_name UNIQUE (service_id, region_id, resource_name)
);

CREATE TABLE resource_classes (
    name TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    CONSTRAINT pk_resource_classes PRIMARY KEY (name)
);

CREATE TABLE resource_providers (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    uuid TEXT NOT NULL,
    name TEXT NOT NULL,
    generation BIGINT NOT NULL,
    parent_id BIGINT,
    root_id BIGINT,
    change BIGINT NOT NULL,
    facts BIGINT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    reported BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT uq_resource_providers_uuid UNIQUE (uuid),
    CONSTRAINT uq_resource_providers_name UNIQUE (name),
    CONSTRAINT fk_resource_providers_parent_id FOREIGN KEY(parent_id) REFERENCES resource_providers (id),
    CONSTRAINT fk_resource_providers_root_id FOREIGN KEY(root_id) REFERENCES resource_providers (id)
);

CREATE INDEX resource_providers_change ON resource_providers (change);

CREATE INDEX resource_providers_parent ON resource_providers (parent_id);

CREATE INDEX resource_providers_root ON resource_providers (root_id);

CREATE TABLE revocations (
    subject TEXT NOT NULL,
    issued_until DOUBLE NOT NULL,
    expires_at DOUBLE NOT NULL,
    CONSTRAINT pk_revocations PRIMARY KEY (subject)
);

CREATE INDEX ix_revocations_expires_at ON revocations (expires_at);

CREATE TABLE roles (
    id TEXT NOT NULL,
    domain_id TEXT DEFAULT '' NOT NULL,
    name TEXT NOT NULL,
    description TEXT,
    extra TEXT NOT NULL,
    CONSTRAINT pk_roles PRIMARY KEY (id),
    CONSTRAINT uq_roles_domain_id_name UNIQUE (domain_id, name)
);

CREATE TABLE security_groups (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    description TEXT NOT NULL,
    tags TEXT NOT NULL,
    revision_number BIGINT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    name TEXT NOT NULL,
    stateful BOOLEAN NOT NULL,
    is_default BOOLEAN NOT NULL,
    CONSTRAINT pk_security_groups PRIMARY KEY (id)
);

CREATE INDEX ix_security_groups_name ON security_groups (name);

CREATE INDEX ix_security_groups_project ON security_groups (project_id);

CREATE UNIQUE INDEX uq_security_groups_default ON security_groups (project_id) WHERE is_default;

CREATE TABLE server_groups (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    name TEXT NOT NULL,
    policy TEXT NOT NULL,
    max_server_per_host BIGINT,
    created_at DOUBLE NOT NULL,
    CONSTRAINT pk_server_groups PRIMARY KEY (id)
);

CREATE INDEX server_groups_project ON server_groups (project_id, created_at, id);

CREATE TABLE servers (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    name TEXT NOT NULL,
    hostname TEXT NOT NULL,
    description TEXT,
    vm_state TEXT NOT NULL,
    power_state BIGINT NOT NULL,
    host TEXT,
    hypervisor_hostname TEXT,
    pinned_zone TEXT,
    flavor_id TEXT NOT NULL,
    flavor TEXT NOT NULL,
    vcpus BIGINT NOT NULL,
    ram BIGINT NOT NULL,
    image_id TEXT,
    image_hash TEXT,
    image_properties TEXT NOT NULL,
    key_name TEXT,
    public_key TEXT,
    user_data TEXT,
    personality TEXT,
    sealed_password TEXT,
    metadata TEXT NOT NULL,
    nics TEXT NOT NULL,
    scheduler_hints TEXT NOT NULL,
    config_drive BOOLEAN NOT NULL,
    disk_config TEXT NOT NULL,
    access_ip_v4 TEXT,
    access_ip_v6 TEXT,
    reservation_id TEXT NOT NULL,
    launch_index BIGINT NOT NULL,
    root_device_name TEXT,
    shelved_at DOUBLE,
    shelved_image_id TEXT,
    shelved_image_hash TEXT,
    soft_deleted_at DOUBLE,
    trusted_certificates TEXT,
    locked BOOLEAN NOT NULL,
    locked_reason TEXT,
    locked_by TEXT,
    fault TEXT,
    deleted BOOLEAN NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    launched_at DOUBLE,
    terminated_at DOUBLE,
    CONSTRAINT pk_servers PRIMARY KEY (id)
);

CREATE INDEX servers_changed ON servers (project_id, updated_at);

CREATE INDEX servers_created ON servers (created_at, id) WHERE NOT deleted;

CREATE INDEX servers_flavor ON servers (flavor_id) WHERE NOT deleted;

CREATE INDEX servers_host ON servers (host) WHERE NOT deleted;

CREATE INDEX servers_hostname ON servers (hostname) WHERE NOT deleted;

CREATE INDEX servers_image ON servers (image_id) WHERE NOT deleted;

CREATE INDEX servers_key ON servers (key_name) WHERE NOT deleted;

CREATE INDEX servers_name ON servers (name, project_id) WHERE NOT deleted;

CREATE INDEX servers_node ON servers (hypervisor_hostname) WHERE NOT deleted;

CREATE INDEX servers_project ON servers (project_id, created_at, id) WHERE NOT deleted;

CREATE INDEX servers_reservation ON servers (reservation_id);

CREATE INDEX servers_state ON servers (vm_state, project_id) WHERE NOT deleted;

CREATE INDEX servers_user ON servers (user_id) WHERE NOT deleted;

CREATE TABLE services (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    uuid TEXT NOT NULL,
    host TEXT NOT NULL,
    program TEXT NOT NULL,
    disabled BOOLEAN NOT NULL,
    disabled_reason TEXT,
    forced_down BOOLEAN NOT NULL,
    last_seen_at DOUBLE NOT NULL,
    report_count BIGINT NOT NULL,
    version BIGINT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE,
    CONSTRAINT uq_services_host_program UNIQUE (host, program),
    CONSTRAINT uq_services_uuid UNIQUE (uuid)
);

CREATE INDEX services_program ON services (program, host);

CREATE TABLE share_locks (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    context TEXT NOT NULL,
    resource_type TEXT NOT NULL,
    resource_id TEXT NOT NULL,
    action TEXT NOT NULL,
    reason TEXT,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    CONSTRAINT pk_share_locks PRIMARY KEY (id)
);

CREATE INDEX ix_share_locks_project ON share_locks (project_id, created_at, id);

CREATE INDEX ix_share_locks_resource ON share_locks (resource_id);

CREATE TABLE share_quotas (
    project_id TEXT NOT NULL,
    resource TEXT NOT NULL,
    hard_limit BIGINT NOT NULL,
    CONSTRAINT pk_share_quotas PRIMARY KEY (project_id, resource)
);

CREATE TABLE shares (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    name TEXT,
    description TEXT,
    size BIGINT NOT NULL,
    status TEXT NOT NULL,
    zone TEXT NOT NULL,
    metadata TEXT NOT NULL,
    export_path TEXT,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    CONSTRAINT pk_shares PRIMARY KEY (id)
);

CREATE INDEX ix_shares_project ON shares (project_id, created_at, id);

CREATE TABLE traits (
    name TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    CONSTRAINT pk_traits PRIMARY KEY (name)
);

CREATE TABLE user_quotas (
    project_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    resource TEXT NOT NULL,
    hard_limit BIGINT NOT NULL,
    CONSTRAINT pk_user_quotas PRIMARY KEY (project_id, user_id, resource)
);

CREATE TABLE volume_messages (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    level TEXT NOT NULL,
    resource_type TEXT NOT NULL,
    resource_id TEXT NOT NULL,
    text TEXT NOT NULL,
    request_id TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    expires_at DOUBLE NOT NULL,
    CONSTRAINT pk_volume_messages PRIMARY KEY (id)
);

CREATE INDEX volume_messages_created ON volume_messages (created_at, id);

CREATE INDEX volume_messages_expires ON volume_messages (expires_at);

CREATE INDEX volume_messages_project ON volume_messages (project_id, created_at, id);

CREATE INDEX volume_messages_resource ON volume_messages (resource_id, created_at);

CREATE TABLE volume_quota_classes (
    class_name TEXT NOT NULL,
    resource TEXT NOT NULL,
    hard_limit BIGINT NOT NULL,
    CONSTRAINT pk_volume_quota_classes PRIMARY KEY (class_name, resource)
);

CREATE TABLE volume_quotas (
    project_id TEXT NOT NULL,
    resource TEXT NOT NULL,
    hard_limit BIGINT NOT NULL,
    CONSTRAINT pk_volume_quotas PRIMARY KEY (project_id, resource)
);

CREATE TABLE volume_services (
    program TEXT NOT NULL,
    disabled BOOLEAN NOT NULL,
    disabled_reason TEXT,
    updated_at DOUBLE NOT NULL,
    CONSTRAINT pk_volume_services PRIMARY KEY (program)
);

CREATE TABLE volume_types (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT,
    is_public BOOLEAN NOT NULL,
    extra_specs TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    CONSTRAINT pk_volume_types PRIMARY KEY (id),
    CONSTRAINT uq_volume_types_name UNIQUE (name)
);

CREATE TABLE aggregate_hosts (
    aggregate_id BIGINT NOT NULL,
    host TEXT NOT NULL,
    CONSTRAINT pk_aggregate_hosts PRIMARY KEY (aggregate_id, host),
    CONSTRAINT fk_aggregate_hosts_aggregate_id FOREIGN KEY(aggregate_id) REFERENCES aggregates (id) ON DELETE CASCADE
);

CREATE INDEX aggregate_hosts_host ON aggregate_hosts (host);

CREATE TABLE aggregate_metadata (
    aggregate_id BIGINT NOT NULL,
    "key" TEXT NOT NULL,
    value TEXT NOT NULL,
    CONSTRAINT pk_aggregate_metadata PRIMARY KEY (aggregate_id, "key"),
    CONSTRAINT fk_aggregate_metadata_aggregate_id FOREIGN KEY(aggregate_id) REFERENCES aggregates (id) ON DELETE CASCADE
);

CREATE INDEX aggregate_metadata_key ON aggregate_metadata ("key", value);

CREATE TABLE block_devices (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    uuid TEXT NOT NULL,
    server_id TEXT NOT NULL,
    source_type TEXT NOT NULL,
    destination_type TEXT NOT NULL,
    source_id TEXT,
    volume_id TEXT,
    volume_size BIGINT,
    volume_type TEXT,
    attachment_id TEXT,
    connection TEXT,
    standby TEXT,
    device_name TEXT,
    boot_index BIGINT,
    device_type TEXT,
    disk_bus TEXT,
    guest_format TEXT,
    tag TEXT,
    delete_on_termination BOOLEAN NOT NULL,
    multiattach BOOLEAN NOT NULL,
    created_at DOUBLE NOT NULL,
    CONSTRAINT uq_block_devices_uuid UNIQUE (uuid),
    CONSTRAINT uq_block_devices_server_id_volume_id UNIQUE (server_id, volume_id),
    CONSTRAINT fk_block_devices_server_id FOREIGN KEY(server_id) REFERENCES servers (id) ON DELETE CASCADE
);

CREATE INDEX block_devices_server ON block_devices (server_id, id);

CREATE INDEX block_devices_volume ON block_devices (volume_id);

CREATE TABLE console_tokens (
    hash TEXT NOT NULL,
    server_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    type TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    expires_at DOUBLE NOT NULL,
    CONSTRAINT pk_console_tokens PRIMARY KEY (hash),
    CONSTRAINT fk_console_tokens_server_id FOREIGN KEY(server_id) REFERENCES servers (id) ON DELETE CASCADE
);

CREATE INDEX console_tokens_expires ON console_tokens (expires_at);

CREATE TABLE flavor_access (
    flavor_id BIGINT NOT NULL,
    project_id TEXT NOT NULL,
    CONSTRAINT pk_flavor_access PRIMARY KEY (flavor_id, project_id),
    CONSTRAINT fk_flavor_access_flavor_id FOREIGN KEY(flavor_id) REFERENCES flavors (id) ON DELETE CASCADE
);

CREATE INDEX flavor_access_project ON flavor_access (project_id);

CREATE TABLE groups (
    id TEXT NOT NULL,
    domain_id TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    extra TEXT NOT NULL,
    CONSTRAINT pk_groups PRIMARY KEY (id),
    CONSTRAINT uq_groups_domain_id_name UNIQUE (domain_id, name),
    CONSTRAINT fk_groups_domain_id FOREIGN KEY(domain_id) REFERENCES domains (id)
);

CREATE INDEX ix_groups_name ON groups (name);

CREATE TABLE hypervisors (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    uuid TEXT NOT NULL,
    service_id BIGINT NOT NULL,
    host TEXT NOT NULL,
    hypervisor_hostname TEXT NOT NULL,
    hypervisor_type TEXT NOT NULL,
    hypervisor_version BIGINT NOT NULL,
    host_ip TEXT NOT NULL,
    cpu_info TEXT NOT NULL,
    booted_at DOUBLE,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE,
    connector TEXT,
    networked BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT uq_hypervisors_host_hypervisor_hostname UNIQUE (host, hypervisor_hostname),
    CONSTRAINT uq_hypervisors_uuid UNIQUE (uuid),
    CONSTRAINT fk_hypervisors_service_id FOREIGN KEY(service_id) REFERENCES services (id)
);

CREATE INDEX hypervisors_hostname ON hypervisors (hypervisor_hostname);

CREATE INDEX hypervisors_service ON hypervisors (service_id);

CREATE TABLE image_members (
    image_id TEXT NOT NULL,
    member_id TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    CONSTRAINT pk_image_members PRIMARY KEY (image_id, member_id),
    CONSTRAINT fk_image_members_image_id FOREIGN KEY(image_id) REFERENCES images (id) ON DELETE CASCADE
);

CREATE INDEX ix_image_members_member ON image_members (member_id, image_id);

CREATE TABLE image_properties (
    image_id TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    CONSTRAINT pk_image_properties PRIMARY KEY (image_id, name),
    CONSTRAINT fk_image_properties_image_id FOREIGN KEY(image_id) REFERENCES images (id) ON DELETE CASCADE
);

CREATE INDEX ix_image_properties_name ON image_properties (name, image_id);

CREATE TABLE image_tags (
    image_id TEXT NOT NULL,
    tag TEXT NOT NULL,
    CONSTRAINT pk_image_tags PRIMARY KEY (image_id, tag),
    CONSTRAINT fk_image_tags_image_id FOREIGN KEY(image_id) REFERENCES images (id) ON DELETE CASCADE
);

CREATE INDEX ix_image_tags_tag ON image_tags (tag, image_id);

CREATE TABLE implied_roles (
    prior_id TEXT NOT NULL,
    implied_id TEXT NOT NULL,
    CONSTRAINT pk_implied_roles PRIMARY KEY (prior_id, implied_id),
    CONSTRAINT fk_implied_roles_prior_id FOREIGN KEY(prior_id) REFERENCES roles (id) ON DELETE CASCADE,
    CONSTRAINT fk_implied_roles_implied_id FOREIGN KEY(implied_id) REFERENCES roles (id) ON DELETE CASCADE
);

CREATE INDEX ix_implied_roles_implied_id ON implied_roles (implied_id);

CREATE TABLE inventories (
    provider_id BIGINT NOT NULL,
    resource_class TEXT NOT NULL,
    total BIGINT NOT NULL,
    reserved BIGINT NOT NULL,
    min_unit BIGINT NOT NULL,
    max_unit BIGINT NOT NULL,
    step_size BIGINT NOT NULL,
    allocation_ratio DOUBLE NOT NULL,
    own_ratio DOUBLE,
    aggregate_ratio DOUBLE,
    CONSTRAINT pk_inventories PRIMARY KEY (provider_id, resource_class),
    CONSTRAINT ck_inventories_step_size CHECK (step_size > 0),
    CONSTRAINT fk_inventories_provider_id FOREIGN KEY(provider_id) REFERENCES resource_providers (id) ON DELETE CASCADE,
    CONSTRAINT fk_inventories_resource_class FOREIGN KEY(resource_class) REFERENCES resource_classes (name) ON UPDATE CASCADE
)
 WITHOUT ROWID;

CREATE INDEX inventories_class ON inventories (resource_class, provider_id);

CREATE TABLE operation_steps (
    operation_id TEXT NOT NULL,
    round BIGINT NOT NULL,
    phase TEXT NOT NULL,
    name TEXT NOT NULL,
    outcome TEXT NOT NULL,
    error TEXT,
    host TEXT,
    started_at DOUBLE NOT NULL,
    finished_at DOUBLE NOT NULL,
    CONSTRAINT pk_operation_steps PRIMARY KEY (operation_id, round, phase, name),
    CONSTRAINT fk_operation_steps_operation_id FOREIGN KEY(operation_id) REFERENCES operations (id) ON DELETE CASCADE
);

CREATE TABLE operation_waits (
    operation_id TEXT NOT NULL,
    name TEXT NOT NULL,
    "key" TEXT NOT NULL,
    poll_at DOUBLE,
    created_at DOUBLE NOT NULL,
    posted_at DOUBLE,
    payload TEXT,
    CONSTRAINT pk_operation_waits PRIMARY KEY (operation_id),
    CONSTRAINT fk_operation_waits_operation_id FOREIGN KEY(operation_id) REFERENCES operations (id) ON DELETE CASCADE
);

CREATE INDEX ix_operation_waits_key ON operation_waits ("key");

CREATE TABLE ports (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    description TEXT NOT NULL,
    tags TEXT NOT NULL,
    revision_number BIGINT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    name TEXT NOT NULL,
    network_id TEXT NOT NULL,
    mac_address TEXT NOT NULL,
    admin_state_up BOOLEAN NOT NULL,
    status TEXT NOT NULL,
    device_id TEXT NOT NULL,
    device_owner TEXT NOT NULL,
    port_security_enabled BOOLEAN NOT NULL,
    host_id TEXT NOT NULL,
    vnic_type TEXT NOT NULL,
    profile TEXT NOT NULL,
    allowed_address_pairs TEXT NOT NULL,
    extra_dhcp_opts TEXT NOT NULL,
    CONSTRAINT pk_ports PRIMARY KEY (id),
    CONSTRAINT fk_ports_network_id FOREIGN KEY(network_id) REFERENCES networks (id)
);

CREATE INDEX ix_ports_device ON ports (device_id);

CREATE INDEX ix_ports_host ON ports (host_id);

CREATE INDEX ix_ports_name ON ports (name);

CREATE INDEX ix_ports_project ON ports (project_id);

CREATE UNIQUE INDEX uq_ports_network_mac ON ports (network_id, mac_address);

CREATE TABLE projects (
    id TEXT NOT NULL,
    domain_id TEXT NOT NULL,
    parent_id TEXT,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    enabled BOOLEAN NOT NULL,
    tags TEXT NOT NULL,
    extra TEXT NOT NULL,
    CONSTRAINT pk_projects PRIMARY KEY (id),
    CONSTRAINT uq_projects_domain_id_name UNIQUE (domain_id, name),
    CONSTRAINT fk_projects_domain_id FOREIGN KEY(domain_id) REFERENCES domains (id),
    CONSTRAINT fk_projects_parent_id FOREIGN KEY(parent_id) REFERENCES projects (id)
);

CREATE INDEX ix_projects_name ON projects (name);

CREATE INDEX ix_projects_parent_id ON projects (parent_id);

CREATE TABLE provider_aggregates (
    provider_id BIGINT NOT NULL,
    aggregate_uuid TEXT NOT NULL,
    reported BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT pk_provider_aggregates PRIMARY KEY (provider_id, aggregate_uuid),
    CONSTRAINT fk_provider_aggregates_provider_id FOREIGN KEY(provider_id) REFERENCES resource_providers (id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE INDEX provider_aggregates_aggregate ON provider_aggregates (aggregate_uuid, provider_id);

CREATE TABLE provider_traits (
    provider_id BIGINT NOT NULL,
    trait TEXT NOT NULL,
    reported BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT pk_provider_traits PRIMARY KEY (provider_id, trait),
    CONSTRAINT fk_provider_traits_provider_id FOREIGN KEY(provider_id) REFERENCES resource_providers (id) ON DELETE CASCADE,
    CONSTRAINT fk_provider_traits_trait FOREIGN KEY(trait) REFERENCES traits (name)
)
 WITHOUT ROWID;

CREATE INDEX provider_traits_trait ON provider_traits (trait, provider_id);

CREATE TABLE security_group_rules (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    description TEXT NOT NULL,
    tags TEXT NOT NULL,
    revision_number BIGINT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    security_group_id TEXT NOT NULL,
    remote_group_id TEXT,
    direction TEXT NOT NULL,
    ethertype TEXT NOT NULL,
    protocol TEXT,
    port_range_min BIGINT,
    port_range_max BIGINT,
    remote_ip_prefix TEXT,
    CONSTRAINT pk_security_group_rules PRIMARY KEY (id),
    CONSTRAINT fk_security_group_rules_security_group_id FOREIGN KEY(security_group_id) REFERENCES security_groups (id) ON DELETE CASCADE,
    CONSTRAINT fk_security_group_rules_remote_group_id FOREIGN KEY(remote_group_id) REFERENCES security_groups (id) ON DELETE CASCADE
);

CREATE INDEX ix_security_group_rules_group ON security_group_rules (security_group_id);

CREATE INDEX ix_security_group_rules_project ON security_group_rules (project_id);

CREATE INDEX ix_security_group_rules_remote ON security_group_rules (remote_group_id);

CREATE TABLE server_group_members (
    server_id TEXT NOT NULL,
    group_id TEXT NOT NULL,
    CONSTRAINT pk_server_group_members PRIMARY KEY (server_id),
    CONSTRAINT fk_server_group_members_server_id FOREIGN KEY(server_id) REFERENCES servers (id) ON DELETE CASCADE,
    CONSTRAINT fk_server_group_members_group_id FOREIGN KEY(group_id) REFERENCES server_groups (id) ON DELETE CASCADE
);

CREATE INDEX server_group_members_group ON server_group_members (group_id, server_id);

CREATE TABLE server_shares (
    id TEXT NOT NULL,
    server_id TEXT NOT NULL,
    share_id TEXT NOT NULL,
    tag TEXT NOT NULL,
    share_proto TEXT NOT NULL,
    export_location TEXT NOT NULL,
    built_in BOOLEAN NOT NULL,
    access_to TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    CONSTRAINT pk_server_shares PRIMARY KEY (id),
    CONSTRAINT uq_server_shares_server_id_share_id UNIQUE (server_id, share_id),
    CONSTRAINT uq_server_shares_server_id_tag UNIQUE (server_id, tag),
    CONSTRAINT fk_server_shares_server_id FOREIGN KEY(server_id) REFERENCES servers (id) ON DELETE CASCADE
);

CREATE INDEX ix_server_shares_share ON server_shares (share_id, access_to);

CREATE TABLE server_tags (
    server_id TEXT NOT NULL,
    tag TEXT NOT NULL,
    CONSTRAINT pk_server_tags PRIMARY KEY (server_id, tag),
    CONSTRAINT fk_server_tags_server_id FOREIGN KEY(server_id) REFERENCES servers (id) ON DELETE CASCADE
);

CREATE INDEX server_tags_tag ON server_tags (tag, server_id);

CREATE TABLE share_access_rules (
    id TEXT NOT NULL,
    share_id TEXT NOT NULL,
    access_type TEXT NOT NULL,
    access_to TEXT NOT NULL,
    access_level TEXT NOT NULL,
    metadata TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    CONSTRAINT pk_share_access_rules PRIMARY KEY (id),
    CONSTRAINT uq_share_access_rules_share_id_access_type_access_to UNIQUE (share_id, access_type, access_to),
    CONSTRAINT fk_share_access_rules_share_id FOREIGN KEY(share_id) REFERENCES shares (id) ON DELETE CASCADE
);

CREATE TABLE subnets (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    description TEXT NOT NULL,
    tags TEXT NOT NULL,
    revision_number BIGINT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    name TEXT NOT NULL,
    network_id TEXT NOT NULL,
    ip_version BIGINT NOT NULL,
    cidr TEXT NOT NULL,
    gateway_ip TEXT,
    enable_dhcp BOOLEAN NOT NULL,
    ipv6_ra_mode TEXT,
    ipv6_address_mode TEXT,
    allocation_pools TEXT NOT NULL,
    dns_nameservers TEXT NOT NULL,
    host_routes TEXT NOT NULL,
    CONSTRAINT pk_subnets PRIMARY KEY (id),
    CONSTRAINT fk_subnets_network_id FOREIGN KEY(network_id) REFERENCES networks (id)
);

CREATE INDEX ix_subnets_name ON subnets (name);

CREATE INDEX ix_subnets_network ON subnets (network_id);

CREATE INDEX ix_subnets_project ON subnets (project_id);

CREATE TABLE users (
    id TEXT NOT NULL,
    domain_id TEXT NOT NULL,
    name TEXT NOT NULL,
    enabled BOOLEAN NOT NULL,
    default_project_id TEXT,
    password_hash TEXT,
    extra TEXT NOT NULL,
    password_changed_at DOUBLE,
    token_epoch BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_users PRIMARY KEY (id),
    CONSTRAINT uq_users_domain_id_name UNIQUE (domain_id, name),
    CONSTRAINT fk_users_domain_id FOREIGN KEY(domain_id) REFERENCES domains (id)
);

CREATE INDEX ix_users_default_project_id ON users (default_project_id);

CREATE INDEX ix_users_name ON users (name);

CREATE TABLE volume_default_types (
    project_id TEXT NOT NULL,
    type_id TEXT NOT NULL,
    CONSTRAINT pk_volume_default_types PRIMARY KEY (project_id),
    CONSTRAINT fk_volume_default_types_type_id FOREIGN KEY(type_id) REFERENCES volume_types (id) ON DELETE CASCADE
);

CREATE TABLE volume_type_access (
    type_id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    CONSTRAINT pk_volume_type_access PRIMARY KEY (type_id, project_id),
    CONSTRAINT fk_volume_type_access_type_id FOREIGN KEY(type_id) REFERENCES volume_types (id) ON DELETE CASCADE
);

CREATE INDEX volume_type_access_project ON volume_type_access (project_id);

CREATE TABLE volumes (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    name TEXT,
    description TEXT,
    size BIGINT NOT NULL,
    status TEXT NOT NULL,
    previous_status TEXT,
    type_id TEXT NOT NULL,
    zone TEXT NOT NULL,
    bootable BOOLEAN NOT NULL,
    multiattach BOOLEAN NOT NULL,
    readonly BOOLEAN,
    snapshot_id TEXT,
    source_volume_id TEXT,
    image_metadata TEXT,
    data_id TEXT,
    progress BIGINT,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    CONSTRAINT pk_volumes PRIMARY KEY (id),
    CONSTRAINT fk_volumes_type_id FOREIGN KEY(type_id) REFERENCES volume_types (id)
);

CREATE INDEX volumes_created ON volumes (created_at, id);

CREATE INDEX volumes_name ON volumes (name, project_id);

CREATE INDEX volumes_project ON volumes (project_id, created_at, id);

CREATE INDEX volumes_snapshot ON volumes (snapshot_id);

CREATE INDEX volumes_source ON volumes (source_volume_id);

CREATE INDEX volumes_status ON volumes (status);

CREATE INDEX volumes_type ON volumes (type_id);

CREATE TABLE access_rules (
    id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    service TEXT NOT NULL,
    method TEXT NOT NULL,
    path TEXT NOT NULL,
    CONSTRAINT pk_access_rules PRIMARY KEY (id),
    CONSTRAINT uq_access_rules_user_id_service_method_path UNIQUE (user_id, service, method, path),
    CONSTRAINT fk_access_rules_user_id FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE
);

CREATE TABLE allocations (
    consumer_uuid TEXT NOT NULL,
    provider_id BIGINT NOT NULL,
    resource_class TEXT NOT NULL,
    used BIGINT NOT NULL,
    CONSTRAINT pk_allocations PRIMARY KEY (consumer_uuid, provider_id, resource_class),
    CONSTRAINT fk_allocations_provider_id_resource_class FOREIGN KEY(provider_id, resource_class) REFERENCES inventories (provider_id, resource_class) ON UPDATE CASCADE,
    CONSTRAINT ck_allocations_used CHECK (used > 0),
    CONSTRAINT fk_allocations_consumer_uuid FOREIGN KEY(consumer_uuid) REFERENCES consumers (uuid) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED
)
 WITHOUT ROWID;

CREATE INDEX allocations_provider ON allocations (provider_id, resource_class, used);

CREATE TABLE application_credentials (
    id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT,
    secret_hash TEXT NOT NULL,
    role_ids TEXT NOT NULL,
    unrestricted BOOLEAN NOT NULL,
    has_access_rules BOOLEAN NOT NULL,
    expires_at DOUBLE,
    CONSTRAINT pk_application_credentials PRIMARY KEY (id),
    CONSTRAINT uq_application_credentials_user_id_name UNIQUE (user_id, name),
    CONSTRAINT fk_application_credentials_user_id FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE,
    CONSTRAINT fk_application_credentials_project_id FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);

CREATE INDEX ix_application_credentials_project_id ON application_credentials (project_id);

CREATE TABLE credentials (
    id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    project_id TEXT,
    type TEXT NOT NULL,
    encrypted_blob TEXT NOT NULL,
    extra TEXT NOT NULL,
    CONSTRAINT pk_credentials PRIMARY KEY (id),
    CONSTRAINT fk_credentials_user_id FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE,
    CONSTRAINT fk_credentials_project_id FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);

CREATE INDEX ix_credentials_project_id ON credentials (project_id);

CREATE INDEX ix_credentials_user_id ON credentials (user_id);

CREATE TABLE endpoint_group_projects (
    endpoint_group_id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    CONSTRAINT pk_endpoint_group_projects PRIMARY KEY (endpoint_group_id, project_id),
    CONSTRAINT fk_endpoint_group_projects_endpoint_group_id FOREIGN KEY(endpoint_group_id) REFERENCES endpoint_groups (id) ON DELETE CASCADE,
    CONSTRAINT fk_endpoint_group_projects_project_id FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);

CREATE INDEX ix_endpoint_group_projects_project_id ON endpoint_group_projects (project_id);

CREATE TABLE endpoint_projects (
    endpoint_id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    CONSTRAINT pk_endpoint_projects PRIMARY KEY (endpoint_id, project_id),
    CONSTRAINT fk_endpoint_projects_project_id FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);

CREATE INDEX ix_endpoint_projects_project_id ON endpoint_projects (project_id);

CREATE TABLE group_members (
    group_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    CONSTRAINT pk_group_members PRIMARY KEY (group_id, user_id),
    CONSTRAINT fk_group_members_group_id FOREIGN KEY(group_id) REFERENCES groups (id) ON DELETE CASCADE,
    CONSTRAINT fk_group_members_user_id FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE
);

CREATE INDEX ix_group_members_user_id ON group_members (user_id);

CREATE TABLE group_role_assignments (
    group_id TEXT NOT NULL,
    target_kind TEXT NOT NULL,
    target_id TEXT NOT NULL,
    role_id TEXT NOT NULL,
    CONSTRAINT pk_group_role_assignments PRIMARY KEY (group_id, target_kind, target_id, role_id),
    CONSTRAINT fk_group_role_assignments_group_id FOREIGN KEY(group_id) REFERENCES groups (id) ON DELETE CASCADE,
    CONSTRAINT fk_group_role_assignments_role_id FOREIGN KEY(role_id) REFERENCES roles (id) ON DELETE CASCADE
);

CREATE INDEX ix_group_role_assignments_role_id ON group_role_assignments (role_id);

CREATE INDEX ix_group_role_assignments_target_kind_target_id ON group_role_assignments (target_kind, target_id);

CREATE TABLE limits (
    id TEXT NOT NULL,
    registered_limit_id TEXT NOT NULL,
    project_id TEXT,
    domain_id TEXT,
    resource_limit BIGINT NOT NULL,
    description TEXT,
    extra TEXT NOT NULL,
    CONSTRAINT pk_limits PRIMARY KEY (id),
    CONSTRAINT uq_limits_registered_limit_id_project_id UNIQUE (registered_limit_id, project_id),
    CONSTRAINT uq_limits_registered_limit_id_domain_id UNIQUE (registered_limit_id, domain_id),
    CONSTRAINT fk_limits_registered_limit_id FOREIGN KEY(registered_limit_id) REFERENCES registered_limits (id),
    CONSTRAINT fk_limits_project_id FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE,
    CONSTRAINT fk_limits_domain_id FOREIGN KEY(domain_id) REFERENCES domains (id) ON DELETE CASCADE
);

CREATE INDEX ix_limits_domain_id ON limits (domain_id);

CREATE INDEX ix_limits_project_id ON limits (project_id);

CREATE TABLE port_addresses (
    subnet_id TEXT NOT NULL,
    ip_address TEXT NOT NULL,
    slot BIGINT,
    port_id TEXT NOT NULL,
    position BIGINT NOT NULL,
    CONSTRAINT pk_port_addresses PRIMARY KEY (subnet_id, ip_address),
    CONSTRAINT fk_port_addresses_subnet_id FOREIGN KEY(subnet_id) REFERENCES subnets (id),
    CONSTRAINT fk_port_addresses_port_id FOREIGN KEY(port_id) REFERENCES ports (id) ON DELETE CASCADE
);

CREATE INDEX ix_port_addresses_ip ON port_addresses (ip_address);

CREATE INDEX ix_port_addresses_port ON port_addresses (port_id, position);

CREATE INDEX ix_port_addresses_slot ON port_addresses (subnet_id, slot);

CREATE TABLE port_security_groups (
    port_id TEXT NOT NULL,
    security_group_id TEXT NOT NULL,
    CONSTRAINT pk_port_security_groups PRIMARY KEY (port_id, security_group_id),
    CONSTRAINT fk_port_security_groups_port_id FOREIGN KEY(port_id) REFERENCES ports (id) ON DELETE CASCADE,
    CONSTRAINT fk_port_security_groups_security_group_id FOREIGN KEY(security_group_id) REFERENCES security_groups (id)
);

CREATE INDEX ix_port_security_groups_group ON port_security_groups (security_group_id);

CREATE TABLE role_assignments (
    user_id TEXT NOT NULL,
    target_kind TEXT NOT NULL,
    target_id TEXT NOT NULL,
    role_id TEXT NOT NULL,
    CONSTRAINT pk_role_assignments PRIMARY KEY (user_id, target_kind, target_id, role_id),
    CONSTRAINT fk_role_assignments_user_id FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE,
    CONSTRAINT fk_role_assignments_role_id FOREIGN KEY(role_id) REFERENCES roles (id) ON DELETE CASCADE
);

CREATE INDEX ix_role_assignments_role_id ON role_assignments (role_id);

CREATE INDEX ix_role_assignments_target_kind_target_id ON role_assignments (target_kind, target_id);

CREATE TABLE routers (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    description TEXT NOT NULL,
    tags TEXT NOT NULL,
    revision_number BIGINT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    admin_state_up BOOLEAN NOT NULL,
    gateway_port_id TEXT,
    enable_snat BOOLEAN NOT NULL,
    routes TEXT NOT NULL,
    availability_zone_hints TEXT NOT NULL,
    CONSTRAINT pk_routers PRIMARY KEY (id),
    CONSTRAINT fk_routers_gateway_port_id FOREIGN KEY(gateway_port_id) REFERENCES ports (id)
);

CREATE INDEX ix_routers_gateway ON routers (gateway_port_id);

CREATE INDEX ix_routers_name ON routers (name);

CREATE INDEX ix_routers_project ON routers (project_id);

CREATE TABLE standby_bindings (
    port_id TEXT NOT NULL,
    host TEXT NOT NULL,
    vnic_type TEXT NOT NULL,
    profile TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    CONSTRAINT pk_standby_bindings PRIMARY KEY (port_id, host),
    CONSTRAINT fk_standby_bindings_port_id FOREIGN KEY(port_id) REFERENCES ports (id) ON DELETE CASCADE
);

CREATE INDEX standby_bindings_host ON standby_bindings (host);

CREATE TABLE trunks (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    description TEXT NOT NULL,
    tags TEXT NOT NULL,
    revision_number BIGINT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    name TEXT NOT NULL,
    port_id TEXT NOT NULL,
    admin_state_up BOOLEAN NOT NULL,
    CONSTRAINT pk_trunks PRIMARY KEY (id),
    CONSTRAINT fk_trunks_port_id FOREIGN KEY(port_id) REFERENCES ports (id)
);

CREATE INDEX ix_trunks_name ON trunks (name);

CREATE INDEX ix_trunks_project ON trunks (project_id);

CREATE UNIQUE INDEX uq_trunks_port ON trunks (port_id);

CREATE TABLE trusts (
    id TEXT NOT NULL,
    trustor_user_id TEXT NOT NULL,
    trustee_user_id TEXT NOT NULL,
    project_id TEXT,
    impersonation BOOLEAN NOT NULL,
    role_ids TEXT NOT NULL,
    expires_at DOUBLE,
    remaining_uses BIGINT,
    redelegation_count BIGINT NOT NULL,
    redelegated_trust_id TEXT,
    extra TEXT NOT NULL,
    CONSTRAINT pk_trusts PRIMARY KEY (id),
    CONSTRAINT fk_trusts_trustor_user_id FOREIGN KEY(trustor_user_id) REFERENCES users (id) ON DELETE CASCADE,
    CONSTRAINT fk_trusts_trustee_user_id FOREIGN KEY(trustee_user_id) REFERENCES users (id) ON DELETE CASCADE,
    CONSTRAINT fk_trusts_project_id FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE,
    CONSTRAINT fk_trusts_redelegated_trust_id FOREIGN KEY(redelegated_trust_id) REFERENCES trusts (id) ON DELETE CASCADE
);

CREATE INDEX ix_trusts_project_id ON trusts (project_id);

CREATE INDEX ix_trusts_redelegated_trust_id ON trusts (redelegated_trust_id);

CREATE INDEX ix_trusts_trustee_user_id ON trusts (trustee_user_id);

CREATE INDEX ix_trusts_trustor_user_id ON trusts (trustor_user_id);

CREATE TABLE volume_attachments (
    id TEXT NOT NULL,
    volume_id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    server_id TEXT,
    status TEXT NOT NULL,
    mode TEXT NOT NULL,
    host TEXT,
    mountpoint TEXT,
    connector TEXT,
    connection TEXT,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    attached_at DOUBLE,
    CONSTRAINT pk_volume_attachments PRIMARY KEY (id),
    CONSTRAINT fk_volume_attachments_volume_id FOREIGN KEY(volume_id) REFERENCES volumes (id) ON DELETE CASCADE
);

CREATE INDEX volume_attachments_project ON volume_attachments (project_id, created_at, id);

CREATE INDEX volume_attachments_server ON volume_attachments (server_id);

CREATE INDEX volume_attachments_volume ON volume_attachments (volume_id);

CREATE TABLE volume_metadata (
    volume_id TEXT NOT NULL,
    "key" TEXT NOT NULL,
    value TEXT NOT NULL,
    CONSTRAINT pk_volume_metadata PRIMARY KEY (volume_id, "key"),
    CONSTRAINT fk_volume_metadata_volume_id FOREIGN KEY(volume_id) REFERENCES volumes (id) ON DELETE CASCADE
);

CREATE INDEX volume_metadata_key ON volume_metadata ("key", value);

CREATE TABLE volume_snapshots (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    volume_id TEXT NOT NULL,
    name TEXT,
    description TEXT,
    size BIGINT NOT NULL,
    status TEXT NOT NULL,
    progress BIGINT,
    image_metadata TEXT,
    bootable BOOLEAN NOT NULL,
    data_id TEXT,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    CONSTRAINT pk_volume_snapshots PRIMARY KEY (id),
    CONSTRAINT fk_volume_snapshots_volume_id FOREIGN KEY(volume_id) REFERENCES volumes (id)
);

CREATE INDEX volume_snapshots_created ON volume_snapshots (created_at, id);

CREATE INDEX volume_snapshots_project ON volume_snapshots (project_id, created_at, id);

CREATE INDEX volume_snapshots_volume ON volume_snapshots (volume_id, created_at);

CREATE TABLE volume_transfers (
    id TEXT NOT NULL,
    volume_id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    name TEXT,
    salt TEXT NOT NULL,
    key_hash TEXT NOT NULL,
    no_snapshots BOOLEAN NOT NULL,
    created_at DOUBLE NOT NULL,
    CONSTRAINT pk_volume_transfers PRIMARY KEY (id),
    CONSTRAINT fk_volume_transfers_volume_id FOREIGN KEY(volume_id) REFERENCES volumes (id) ON DELETE CASCADE
);

CREATE INDEX volume_transfers_project ON volume_transfers (project_id, created_at, id);

CREATE UNIQUE INDEX volume_transfers_volume ON volume_transfers (volume_id);

CREATE TABLE application_credential_rules (
    application_credential_id TEXT NOT NULL,
    access_rule_id TEXT NOT NULL,
    CONSTRAINT pk_application_credential_rules PRIMARY KEY (application_credential_id, access_rule_id),
    CONSTRAINT fk_application_credential_rules_application_credential_id FOREIGN KEY(application_credential_id) REFERENCES application_credentials (id) ON DELETE CASCADE,
    CONSTRAINT fk_application_credential_rules_access_rule_id FOREIGN KEY(access_rule_id) REFERENCES access_rules (id) ON DELETE CASCADE
);

CREATE INDEX ix_application_credential_rules_access_rule_id ON application_credential_rules (access_rule_id);

CREATE TABLE auto_topologies (
    project_id TEXT NOT NULL,
    network_id TEXT NOT NULL,
    router_id TEXT,
    CONSTRAINT pk_auto_topologies PRIMARY KEY (project_id),
    CONSTRAINT fk_auto_topologies_network_id FOREIGN KEY(network_id) REFERENCES networks (id) ON DELETE CASCADE,
    CONSTRAINT fk_auto_topologies_router_id FOREIGN KEY(router_id) REFERENCES routers (id) ON DELETE SET NULL
);

CREATE INDEX ix_auto_topologies_network ON auto_topologies (network_id);

CREATE INDEX ix_auto_topologies_router ON auto_topologies (router_id);

CREATE TABLE floating_ips (
    id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    description TEXT NOT NULL,
    tags TEXT NOT NULL,
    revision_number BIGINT NOT NULL,
    created_at DOUBLE NOT NULL,
    updated_at DOUBLE NOT NULL,
    status TEXT NOT NULL,
    floating_network_id TEXT NOT NULL,
    floating_ip_address TEXT NOT NULL,
    floating_port_id TEXT NOT NULL,
    port_id TEXT,
    fixed_ip_address TEXT,
    router_id TEXT,
    CONSTRAINT pk_floating_ips PRIMARY KEY (id),
    CONSTRAINT fk_floating_ips_floating_network_id FOREIGN KEY(floating_network_id) REFERENCES networks (id),
    CONSTRAINT fk_floating_ips_floating_port_id FOREIGN KEY(floating_port_id) REFERENCES ports (id),
    CONSTRAINT fk_floating_ips_port_id FOREIGN KEY(port_id) REFERENCES ports (id),
    CONSTRAINT fk_floating_ips_router_id FOREIGN KEY(router_id) REFERENCES routers (id)
);

CREATE INDEX ix_floating_ips_address ON floating_ips (floating_ip_address);

CREATE INDEX ix_floating_ips_floating_port ON floating_ips (floating_port_id);

CREATE INDEX ix_floating_ips_network ON floating_ips (floating_network_id);

CREATE INDEX ix_floating_ips_project ON floating_ips (project_id);

CREATE INDEX ix_floating_ips_router ON floating_ips (router_id);

CREATE UNIQUE INDEX uq_floating_ips_target ON floating_ips (port_id, fixed_ip_address);

CREATE TABLE trunk_subports (
    port_id TEXT NOT NULL,
    trunk_id TEXT NOT NULL,
    segmentation_type TEXT NOT NULL,
    segmentation_id BIGINT NOT NULL,
    CONSTRAINT pk_trunk_subports PRIMARY KEY (port_id),
    CONSTRAINT fk_trunk_subports_port_id FOREIGN KEY(port_id) REFERENCES ports (id),
    CONSTRAINT fk_trunk_subports_trunk_id FOREIGN KEY(trunk_id) REFERENCES trunks (id)
);

CREATE UNIQUE INDEX uq_trunk_subports_segment ON trunk_subports (trunk_id, segmentation_type, segmentation_id);

CREATE TABLE volume_snapshot_metadata (
    snapshot_id TEXT NOT NULL,
    "key" TEXT NOT NULL,
    value TEXT NOT NULL,
    CONSTRAINT pk_volume_snapshot_metadata PRIMARY KEY (snapshot_id, "key"),
    CONSTRAINT fk_volume_snapshot_metadata_snapshot_id FOREIGN KEY(snapshot_id) REFERENCES volume_snapshots (id) ON DELETE CASCADE
);

CREATE INDEX volume_snapshot_metadata_key ON volume_snapshot_metadata ("key", value);

INSERT INTO alembic_version (version_num) VALUES ('0020');
